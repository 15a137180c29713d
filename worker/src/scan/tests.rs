use super::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

struct Tree(TempDir);

impl Tree {
    fn new(files: &[&str]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for file in files {
            tree.write(file);
        }
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), name).unwrap();
    }

    fn scanner(&self, include: &[&str], exclude: &[&str]) -> Scanner {
        let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
        Scanner::new(&ScanSettings {
            scan_dir: self.0.path().to_owned(),
            include_globs: owned(include),
            exclude_globs: owned(exclude),
        })
        .unwrap()
    }

    /// Names found and names skipped with their reasons, sorted.
    fn scan(
        &self,
        include: &[&str],
        exclude: &[&str],
    ) -> (Vec<String>, Vec<(String, &'static str)>, ScanReport) {
        let (mut found, mut skipped) = (Vec::new(), Vec::new());
        let short = |path: &Path| path.strip_prefix(self.0.path()).unwrap().to_string_lossy().into_owned();
        let report = self.scanner(include, exclude).scan(|entry| {
            match entry {
                Entry::Found(file) => found.push(short(Path::new(&file.path))),
                Entry::Skipped(entry) => skipped.push((short(&entry.path), entry.reason.as_str())),
            }
            ControlFlow::Continue(())
        });
        found.sort();
        skipped.sort();
        (found, skipped, report)
    }
}

#[test]
fn files_at_every_depth_are_found_and_exclusion_wins() {
    let tree = Tree::new(&["a.pdf", "b.tmp", "d/c.txt", "d/e/f.tmp", "d/e/.DS_Store", "d/e/g"]);
    let (found, skipped, report) = tree.scan(&["**/*"], &["**/*.tmp", "**/.DS_Store"]);
    assert_eq!(found, ["a.pdf", "d/c.txt", "d/e/g"]);
    assert!(skipped.is_empty());
    assert!(report.complete && report.errors == 0);
    assert_eq!((report.found, report.files), (3, 6));
}

#[test]
fn a_star_stays_within_a_directory() {
    let tree = Tree::new(&["a.txt", "d/b.txt", "d/e/c.txt"]);
    assert_eq!(tree.scan(&["*.txt"], &[]).0, ["a.txt"]);
    assert_eq!(tree.scan(&["d/*.txt"], &[]).0, ["d/b.txt"]);
    assert_eq!(tree.scan(&["d/**/*.txt"], &[]).0, ["d/b.txt", "d/e/c.txt"]);
    assert_eq!(tree.scan(&["*.{txt,md}", "d/e/**"], &[]).0, ["a.txt", "d/e/c.txt"]);
}

#[test]
fn a_directory_of_which_everything_is_excluded_is_not_read() {
    let tree = Tree::new(&["a", "lost+found/b", "d/.git/c", "d/.git/e/f"]);
    let (found, skipped, report) = tree.scan(&["**/*"], &["lost+found/**", "**/.git/**"]);
    assert_eq!(found, ["a"]);
    assert!(skipped.is_empty());
    assert_eq!(report.files, 1);
}

#[test]
fn what_was_found_has_an_absolute_path_its_size_and_its_time() {
    let tree = Tree::new(&["d/abc"]);
    let mut all = Vec::new();
    tree.scanner(&["**/*"], &[]).scan(|entry| {
        all.push(entry);
        ControlFlow::Continue(())
    });
    let [Entry::Found(found)] = &all[..] else { panic!("{all:?}") };
    let metadata = fs::metadata(tree.path("d/abc")).unwrap();
    assert_eq!(Path::new(&found.path), tree.path("d/abc"));
    assert_eq!(found.size, 5);
    let nanos = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    assert_eq!(found.state(), format!("5:{nanos}"));
}

#[test]
fn links_are_followed_to_files_within_the_tree_only() {
    let outside = Tree::new(&["secret"]);
    let tree = Tree::new(&["d/file"]);
    symlink("d/file", tree.path("inside")).unwrap();
    symlink(tree.path("inside"), tree.path("d/twice")).unwrap();
    symlink(outside.path("secret"), tree.path("out")).unwrap();
    symlink("../../../../../../../../etc/hostname", tree.path("d/up")).unwrap();
    symlink(tree.path("d"), tree.path("directory")).unwrap();
    symlink(outside.0.path(), tree.path("out-directory")).unwrap();
    symlink("nowhere", tree.path("dangling")).unwrap();
    symlink("..", tree.path("d/cycle")).unwrap();
    symlink("loop", tree.path("loop")).unwrap();
    let (found, skipped, report) = tree.scan(&["**/*"], &[]);
    assert_eq!(found, ["d/file", "d/twice", "inside"]);
    let reasons: Vec<_> = skipped.iter().map(|(path, reason)| (path.as_str(), *reason)).collect();
    assert_eq!(
        reasons,
        [
            ("d/cycle", "links_to_directory"),
            ("d/up", "links_out"),
            ("dangling", "dangling_link"),
            ("directory", "links_to_directory"),
            ("loop", "unreadable"),
            ("out", "links_out"),
            ("out-directory", "links_out"),
        ]
    );
    assert_eq!(report.errors, 1);
}

#[test]
fn the_scanned_directory_may_itself_be_a_link() {
    let tree = Tree::new(&["real/a"]);
    symlink("a", tree.path("real/b")).unwrap();
    symlink("real", tree.path("link")).unwrap();
    let scanner = Scanner::new(&ScanSettings {
        scan_dir: tree.path("link"),
        include_globs: vec!["*".into()],
        exclude_globs: Vec::new(),
    })
    .unwrap();
    let mut paths = Vec::new();
    scanner.scan(|entry| {
        let Entry::Found(found) = entry else { panic!("{entry:?}") };
        paths.push(PathBuf::from(found.path));
        ControlFlow::Continue(())
    });
    paths.sort();
    assert_eq!(paths, [tree.path("link/a"), tree.path("link/b")]);
}

#[test]
fn a_name_that_is_not_utf8_and_a_socket_are_skipped() {
    let tree = Tree::new(&["a"]);
    fs::write(tree.0.path().join(OsStr::from_bytes(b"b\xff")), "").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.path("socket")).unwrap();
    let (found, skipped, report) = tree.scan(&["**/*"], &[]);
    assert_eq!(found, ["a"]);
    assert_eq!(skipped, [("b\u{fffd}".to_owned(), "not_utf8"), ("socket".into(), "not_a_file")]);
    assert_eq!(report.errors, 0);
    let (_, excluded, _) = tree.scan(&["*"], &["b*", "socket"]);
    assert!(excluded.is_empty());
}

#[test]
fn an_unreadable_directory_is_skipped_and_the_rest_is_found() {
    let tree = Tree::new(&["a", "z/c"]);
    // Nobody can open a path of more than 4096 bytes, not even root, who may read everything else. It is made of two
    // halves, since nobody can make it either.
    let half = || std::iter::repeat_n("d".repeat(250), 12).collect::<PathBuf>();
    let (upper, lower) = (tree.path("upper").join(half()), tree.path("lower"));
    fs::create_dir_all(&upper).unwrap();
    fs::create_dir_all(lower.join(half())).unwrap();
    fs::rename(lower, upper.join("lower")).unwrap();
    let (found, skipped, report) = tree.scan(&["**/*"], &[]);
    assert_eq!(found, ["a", "z/c"]);
    assert_eq!(skipped.iter().map(|(_, reason)| *reason).collect::<Vec<_>>(), ["unreadable"]);
    assert!(report.complete && report.errors == 1);
}

#[test]
fn a_directory_that_is_none_is_an_error_of_the_scan_not_of_the_process() {
    let tree = Tree::new(&[]);
    fs::remove_dir(tree.0.path()).unwrap();
    for what in ["missing", "a file"] {
        let (found, skipped, report) = tree.scan(&["**/*"], &[]);
        assert!(found.is_empty(), "{what}");
        assert_eq!(skipped, [(String::new(), "unreadable")], "{what}");
        assert!(!report.complete && report.errors == 1 && report.root_device.is_none(), "{what}");
        fs::write(tree.0.path(), "").unwrap();
    }
    fs::remove_file(tree.0.path()).unwrap();
}

#[test]
fn a_scan_that_is_stopped_is_not_complete() {
    let tree = Tree::new(&["a", "b", "c"]);
    let mut met = 0;
    let report = tree.scanner(&["**/*"], &[]).scan(|_| {
        met += 1;
        ControlFlow::Break(())
    });
    assert_eq!(met, 1);
    assert!(!report.complete);
}

#[test]
fn a_bad_glob_is_named_with_its_key_value_and_rule() {
    let settings = ScanSettings {
        scan_dir: ".".into(),
        include_globs: vec!["**/*".into()],
        exclude_globs: vec!["ok".into(), "a{b".into()],
    };
    let message = Scanner::new(&settings).unwrap_err().to_string();
    assert!(message.starts_with("producer.exclude_globs: \"a{b\" is not a glob: unclosed"), "{message}");
}

#[test]
fn a_deleted_file_and_a_deleted_directory_are_forgotten_after_two_scans() {
    let tree = Tree::new(&["keep", "gone", "d/e/gone", "d/keep", "hidden.txt"]);
    let seen: Vec<String> = ["keep", "gone", "d/e/gone", "d/keep", "hidden.txt", "/elsewhere/gone"]
        .iter()
        .map(|name| tree.path(name).to_str().unwrap().to_owned())
        .collect();
    let names = |before: &ScanReport, after: &ScanReport| {
        prune::forgotten(seen.iter().map(String::as_str), after, before).len()
    };
    let full = tree.scan(&["**/*"], &[]).2;
    fs::remove_file(tree.path("gone")).unwrap();
    fs::remove_dir_all(tree.path("d/e")).unwrap();
    let once = tree.scan(&["**/*"], &[]).2;
    // What the globs no longer ask for is still there.
    let twice = tree.scan(&["**/*"], &["*.txt"]).2;
    assert_eq!(names(&full, &once), 0);
    assert_eq!(names(&once, &twice), 2);

    for name in ["keep", "hidden.txt"] {
        fs::remove_file(tree.path(name)).unwrap();
    }
    fs::remove_dir_all(tree.path("d")).unwrap();
    let (empty, again) = (tree.scan(&["**/*"], &[]).2, tree.scan(&["**/*"], &[]).2);
    assert_eq!(names(&empty, &again), 0, "an empty directory may be a volume that is not mounted");
}

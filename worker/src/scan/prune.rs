//! Which remembered files are really gone. Forgetting one too many enqueues it a second time when it comes
//! back, so absence has to be proven, twice: a volume that is not mounted looks like an empty directory.
use super::ScanReport;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::LazyLock;

/// Random per process, so that nobody can choose names that collide. Reports are compared within one
/// process only.
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The directories that a scan read, and the names it met in them, as 64 bits each: a million files cost
/// some 16 MB. A collision keeps a memory that could go, or (at one in 10^13 a lookup) drops one too early.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    read: HashSet<u64>,
    met: HashSet<u64>,
}

impl Listing {
    /// A directory is being read.
    pub fn read(&mut self, directory: &Path) {
        self.read.insert(HASH.hash_one(directory));
    }

    /// A directory turned out to be unreadable.
    pub fn unread(&mut self, directory: &Path) {
        self.read.remove(&HASH.hash_one(directory));
    }

    /// An entry of a directory that is being read.
    pub fn met(&mut self, path: &Path) {
        self.met.insert(HASH.hash_one(path));
    }

    fn was_read(&self, directory: &Path) -> bool {
        self.read.contains(&HASH.hash_one(directory))
    }

    fn was_met(&self, path: &Path) -> bool {
        self.met.contains(&HASH.hash_one(path))
    }

    /// Whether this listing proves that there is no such file: its directory was read without meeting it,
    /// or that directory is proven to be gone in the same way.
    fn proves_absence(&self, path: &Path) -> bool {
        if self.was_met(path) {
            return false;
        }
        match path.parent() {
            Some(parent) => self.was_read(parent) || self.proves_absence(parent),
            None => false,
        }
    }
}

/// Of the paths that are remembered, those to forget: absent from two complete scans in a row that had no
/// error, found files, and saw the same device. `seen` may be any part of what is remembered, so that a
/// caller can go through it page by page.
pub fn forgotten<'a>(
    seen: impl IntoIterator<Item = &'a str>,
    this: &ScanReport,
    previous: &ScanReport,
) -> Vec<&'a str> {
    let trusted = |scan: &ScanReport| scan.complete && scan.errors == 0 && scan.files > 0;
    let same_device = this.root_device.is_some() && this.root_device == previous.root_device;
    if !trusted(this) || !trusted(previous) || !same_device || this.place != previous.place {
        return Vec::new();
    }
    seen.into_iter()
        .filter(|path| {
            let path = Path::new(path);
            this.listing.proves_absence(path) && previous.listing.proves_absence(path)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const ROOT: &str = "/r";

    /// How a directory of a tree of two levels shows itself to a scan.
    #[derive(Debug, Clone)]
    enum Directory {
        Readable(BTreeSet<u8>),
        /// Listed, but not read: excluded, or on another device.
        Closed,
    }

    #[derive(Debug, Clone)]
    struct World {
        directories: BTreeMap<u8, Directory>,
        complete: bool,
        errors: u64,
        device: Option<u64>,
    }

    impl World {
        fn scan(&self) -> ScanReport {
            let mut report = ScanReport {
                complete: self.complete,
                errors: self.errors,
                root_device: self.device,
                ..ScanReport::default()
            };
            report.listing.read(Path::new(ROOT));
            for (name, directory) in &self.directories {
                let path = format!("{ROOT}/{name}");
                report.listing.met(Path::new(&path));
                if let Directory::Readable(files) = directory {
                    report.listing.read(Path::new(&path));
                    for file in files {
                        report.files += 1;
                        report.listing.met(Path::new(&format!("{path}/{file}")));
                    }
                }
            }
            report
        }

        /// Nobody can say that this file is not there: it is, or nobody looked.
        fn may_hold(&self, directory: u8, file: u8) -> bool {
            match self.directories.get(&directory) {
                Some(Directory::Readable(files)) => files.contains(&file),
                Some(Directory::Closed) => true,
                None => false,
            }
        }

        fn is_trusted(&self) -> bool {
            self.complete
                && self.errors == 0
                && self
                    .directories
                    .values()
                    .any(|directory| matches!(directory, Directory::Readable(files) if !files.is_empty()))
        }
    }

    fn world() -> impl Strategy<Value = World> {
        let directory = prop_oneof![
            4 => proptest::collection::btree_set(0..4u8, 0..4).prop_map(Directory::Readable),
            1 => Just(Directory::Closed),
        ];
        let device = prop_oneof![8 => Just(Some(1)), 1 => Just(Some(2)), 1 => Just(None)];
        let errors = prop_oneof![8 => Just(0), 1 => 1..3u64];
        (btree_map(0..3u8, directory, 0..4), prop::bool::weighted(0.9), errors, device).prop_map(
            |(directories, complete, errors, device)| World { directories, complete, errors, device },
        )
    }

    proptest! {
        #[test]
        fn exactly_what_two_trusted_scans_prove_absent_is_forgotten(
            previous in world(),
            this in world(),
            seen in vec((0..4u8, 0..5u8), 0..20),
        ) {
            let paths: Vec<String> =
                seen.iter().map(|(directory, file)| format!("{ROOT}/{directory}/{file}")).collect();
            let forgotten = forgotten(paths.iter().map(String::as_str), &this.scan(), &previous.scan());
            let trusted = this.is_trusted() && previous.is_trusted()
                && this.device.is_some() && this.device == previous.device;
            let expected: Vec<&str> = seen.iter().zip(&paths)
                .filter(|((directory, file), _)| {
                    trusted && !this.may_hold(*directory, *file) && !previous.may_hold(*directory, *file)
                })
                .map(|(_, path)| path.as_str())
                .collect();
            prop_assert_eq!(forgotten, expected);
        }

        #[test]
        fn a_path_outside_of_the_scanned_directory_is_never_forgotten(
            previous in world(),
            this in world(),
            path in "(/[a-q]{1,3}){1,3}|[a-z]{0,3}",
        ) {
            prop_assert!(forgotten([path.as_str()], &this.scan(), &previous.scan()).is_empty());
        }
    }
}

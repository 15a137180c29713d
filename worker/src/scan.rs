//! Looks through a directory for files to enqueue. It streams: a tree of a million files is never held as
//! paths, only as eight bytes an entry, which is what deciding about forgotten files needs.
mod job;
pub mod prune;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use prune::Listing;
use std::fs::{self, Metadata};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use walkdir::{DirEntry, WalkDir};

pub use job::{TraceIds, job_json, priority};

/// `producer`, as far as it says what to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanSettings {
    /// The directory to look through.
    pub scan_dir: PathBuf,
    /// A file is taken if one of these matches its path below `scan_dir`, ...
    pub include_globs: Vec<String>,
    /// ... and none of these does. `*` stays within a directory, `**` crosses them.
    pub exclude_globs: Vec<String>,
}

/// Why the settings describe no scan.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Not a glob.
    #[error("producer.{key}: {value:?} is not a glob: {rule}")]
    Glob {
        /// The key it stands under.
        key: &'static str,
        /// What was given.
        value: String,
        /// The rule it breaks.
        rule: String,
    },
    /// Not a directory we could name absolutely.
    #[error("producer.scan_dir: {value:?}: {source}")]
    ScanDir {
        /// What was given.
        value: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A file to enqueue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Absolute, below `scan_dir` as it was configured.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub mtime_ns: i128,
}

impl Found {
    /// What `seen` remembers of it: a file is enqueued once per state.
    pub fn state(&self) -> String {
        format!("{}:{}", self.size, self.mtime_ns)
    }
}

/// An entry that was not taken although the globs ask for it.
#[derive(Debug)]
pub struct Skipped {
    /// Where it is; the scanned directory itself when not even that is known.
    pub path: PathBuf,
    /// Why it was not taken.
    pub reason: SkipReason,
}

/// Why an entry was not taken. Few enough to label a metric.
#[derive(Debug, thiserror::Error)]
pub enum SkipReason {
    /// It, or what it links to, cannot be read. The only reason that makes a scan one with errors.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// A job is JSON and JSON is Unicode; a path with replaced characters would name another file.
    #[error("its path is not UTF-8")]
    NotUtf8,
    /// A symbolic link whose target lies outside of the scanned directory.
    #[error("links out of the scanned directory")]
    LinksOut,
    /// A symbolic link to a directory: what is in it is found where it really is.
    #[error("links to a directory")]
    LinksToDirectory,
    /// A symbolic link to nothing.
    #[error("links to nothing")]
    DanglingLink,
    /// A socket, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// A directory where another file system is mounted.
    #[error("is on another file system")]
    OtherDevice,
}

impl SkipReason {
    /// The word for it in metrics and logs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::NotUtf8 => "not_utf8",
            Self::LinksOut => "links_out",
            Self::LinksToDirectory => "links_to_directory",
            Self::DanglingLink => "dangling_link",
            Self::NotAFile => "not_a_file",
            Self::OtherDevice => "other_device",
        }
    }
}

/// What a scan meets, in the order of the file system.
#[derive(Debug)]
pub enum Entry {
    /// A file to enqueue.
    Found(Found),
    /// An entry to log and count.
    Skipped(Skipped),
}

/// What a scan as a whole was like; [`prune::forgotten`] compares two of them.
#[derive(Debug, Clone, Default)]
pub struct ScanReport {
    /// Whether it came to its end.
    pub complete: bool,
    /// Entries that could not be read.
    pub errors: u64,
    /// Files taken.
    pub found: u64,
    /// Files of any kind that were met, taken or not.
    pub files: u64,
    /// The device of the scanned directory; `None` when it could not be read.
    pub root_device: Option<u64>,
    /// Which directory it was: see [`Scanner::place`].
    pub place: Option<String>,
    /// Which directories were read and what was in them.
    pub listing: Listing,
}

/// A directory with the globs that say what to take from it.
#[derive(Debug)]
pub struct Scanner {
    root: PathBuf,
    include: GlobSet,
    exclude: GlobSet,
    /// Directories of which nothing can be taken: those of exclusions that end with `/**`.
    closed: GlobSet,
}

impl Scanner {
    /// A scanner with these settings. The directory need not exist yet: each scan looks anew.
    pub fn new(settings: &ScanSettings) -> Result<Self, ScanError> {
        let root = std::path::absolute(&settings.scan_dir)
            .map_err(|source| ScanError::ScanDir { value: settings.scan_dir.clone(), source })?;
        let closed = settings.exclude_globs.iter().filter_map(|glob| glob.strip_suffix("/**"));
        Ok(Self {
            root,
            include: globs("include_globs", settings.include_globs.iter().map(String::as_str))?,
            exclude: globs("exclude_globs", settings.exclude_globs.iter().map(String::as_str))?,
            closed: globs("exclude_globs", closed)?,
        })
    }

    /// The scanned directory, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Looks through the directory once and hands over each entry as it is met; `Break` ends the scan, which
    /// is then not complete. Blocks on the disk: for a thread of its own.
    pub fn scan(&self, mut each: impl FnMut(Entry) -> ControlFlow<()>) -> ScanReport {
        let mut report = ScanReport::default();
        let real_root = match self.open() {
            Ok((metadata, root)) => {
                report.root_device = Some(metadata.dev());
                report.place = Some(place_of(&metadata));
                root
            }
            Err(error) => {
                report.errors = 1;
                let _ = each(skipped(&self.root, SkipReason::Unreadable(error)));
                return report;
            }
        };
        let mut walk = WalkDir::new(&self.root).same_file_system(true).into_iter();
        while let Some(next) = walk.next() {
            let entry = match next {
                // The root may be a link to a directory, which is not a directory by its own type.
                Ok(entry) if entry.depth() == 0 || entry.file_type().is_dir() => {
                    match self.enter(&entry, &mut report) {
                        Enter::Yes => continue,
                        Enter::No => {
                            walk.skip_current_dir();
                            continue;
                        }
                        Enter::OtherDevice => skipped(entry.path(), SkipReason::OtherDevice),
                    }
                }
                Ok(entry) => {
                    report.files += 1;
                    report.listing.met(entry.path());
                    let Some(entry) = self.file(&entry, &real_root) else { continue };
                    entry
                }
                Err(error) => {
                    let path = error.path().unwrap_or(&self.root).to_owned();
                    report.listing.unread(&path);
                    skipped(&path, SkipReason::Unreadable(error.into()))
                }
            };
            match &entry {
                Entry::Found(_) => report.found += 1,
                Entry::Skipped(Skipped { reason: SkipReason::Unreadable(_), .. }) => report.errors += 1,
                Entry::Skipped(_) => {}
            }
            if each(entry).is_break() {
                return report;
            }
        }
        report.complete = true;
        report
    }

    /// What tells the directory from all others that have its path, on other hosts too, and is the same wherever one disk is
    /// mounted; `None` when it cannot be read.
    pub fn place(&self) -> Option<String> {
        self.open().ok().map(|(metadata, _)| place_of(&metadata))
    }

    /// What the directory is, and where it really is.
    fn open(&self) -> io::Result<(Metadata, PathBuf)> {
        let real = fs::canonicalize(&self.root)?;
        let metadata = fs::metadata(&real)?;
        if !metadata.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok((metadata, real))
    }

    fn enter(&self, entry: &DirEntry, report: &mut ScanReport) -> Enter {
        if entry.depth() > 0 {
            report.listing.met(entry.path());
            // Asked first: the walk stays out of it by itself, and skipping what it is not in would skip the
            // rest of the parent. An error is met again, and reported, when the walk opens the directory.
            if entry.metadata().is_ok_and(|metadata| Some(metadata.dev()) != report.root_device) {
                return Enter::OtherDevice;
            }
            if self.closed.is_match(self.relative(entry.path())) {
                return Enter::No;
            }
        }
        report.listing.read(entry.path());
        Enter::Yes
    }

    /// What to say of an entry that is not a directory; nothing if the globs do not ask for it.
    fn file(&self, entry: &DirEntry, real_root: &Path) -> Option<Entry> {
        let path = entry.path();
        let relative = self.relative(path);
        if !self.include.is_match(relative) || self.exclude.is_match(relative) {
            return None;
        }
        let metadata = if entry.path_is_symlink() { linked(path, real_root) } else { plain(entry) };
        let found = metadata.and_then(|metadata| {
            Ok(Found {
                path: path.to_str().ok_or(SkipReason::NotUtf8)?.to_owned(),
                size: metadata.size(),
                mtime_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
            })
        });
        match found {
            Ok(found) => Some(Entry::Found(found)),
            // Gone since its directory was read: not an error, just no file any more.
            Err(SkipReason::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(reason) => Some(skipped(path, reason)),
        }
    }

    fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// Its number, and when it was made where the file system knows that. Not the device, which one disk has another of
/// wherever it is mounted; nor the host, for whoever restarts a pod gives it another name.
fn place_of(metadata: &Metadata) -> String {
    let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    format!("{}-{}", metadata.ino(), born.map_or(0, |born| born.as_nanos()))
}

enum Enter {
    Yes,
    No,
    OtherDevice,
}

fn skipped(path: &Path, reason: SkipReason) -> Entry {
    Entry::Skipped(Skipped { path: path.to_owned(), reason })
}

fn plain(entry: &DirEntry) -> Result<Metadata, SkipReason> {
    let metadata = entry.metadata().map_err(|error| SkipReason::Unreadable(error.into()))?;
    if metadata.is_file() { Ok(metadata) } else { Err(SkipReason::NotAFile) }
}

/// The file behind a symbolic link, if all links on the way lead into the scanned directory: whoever may
/// write there must not make us read elsewhere.
fn linked(path: &Path, real_root: &Path) -> Result<Metadata, SkipReason> {
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(SkipReason::DanglingLink),
        Err(error) => return Err(SkipReason::Unreadable(error)),
    };
    if !target.starts_with(real_root) {
        return Err(SkipReason::LinksOut);
    }
    // Of the target itself, which has no links left: nobody can swap it for a way out any more.
    match fs::symlink_metadata(&target).map_err(SkipReason::Unreadable)? {
        metadata if metadata.is_file() => Ok(metadata),
        metadata if metadata.is_dir() => Err(SkipReason::LinksToDirectory),
        _ => Err(SkipReason::NotAFile),
    }
}

fn globs<'a>(key: &'static str, values: impl Iterator<Item = &'a str>) -> Result<GlobSet, ScanError> {
    let mut set = GlobSetBuilder::new();
    let bad = |value: &str, error: &globset::Error| ScanError::Glob {
        key,
        value: value.to_owned(),
        rule: error.kind().to_string(),
    };
    for value in values {
        let glob = GlobBuilder::new(value).literal_separator(true).build();
        set.add(glob.map_err(|error| bad(value, &error))?);
    }
    set.build().map_err(|error| bad(error.glob().unwrap_or_default(), &error))
}

#[cfg(test)]
mod tests;

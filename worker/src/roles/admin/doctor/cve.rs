//! Vulnerabilities of Redis that matter to whoever runs scripts in it, and the releases that mend them. Only those whose
//! fixed versions are known for certain.

type Version = (u64, u64, u64);

/// When this table was last compared with what was published: what is newer, it does not know.
pub const AS_OF: &str = "2026-09-21";

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Cve {
    pub id: &'static str,
    pub what: &'static str,
    software: &'static str,
    /// The first release that has it.
    since: Version,
    /// The first fixed release of each line that has one, in ascending order.
    fixed: &'static [Version],
}

const ALWAYS: Version = (0, 0, 0);
const BY_SCRIPT: &str = "a script of an authenticated user can run any code in the server";
const BY_RESTORE: &str = "a crafted RESTORE of an authenticated user can run any code in the server";
const BY_BLOCKING: &str =
    "an authenticated user whose client is evicted while it is unblocked can run any code in the server";
const BY_BUFFERS: &str = "a client that has not authenticated can exhaust the server's memory";

const BY_RULES: &str = "faults of its cluster and of its ACL rules";
/// Releases that do not number what they mend.
const JULY: &str = "the security fixes of July 2026";
const SEPTEMBER: &str = "the security fixes of September 2026";

/// Redis of October 2025, of May 2026 and of July 2026; Valkey of May 2026 (8.0.8 was withdrawn) and of July 2026.
const REDIS_2025_10: &[Version] = &[(6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)];
const REDIS_2026_05: &[Version] = &[(6, 2, 22), (7, 2, 14), (7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)];
const REDIS_2026_07: &[Version] =
    &[(6, 2, 23), (7, 2, 15), (7, 4, 10), (8, 2, 8), (8, 4, 5), (8, 6, 5), (8, 8, 1)];
const VALKEY_2026_05: &[Version] = &[(7, 2, 13), (8, 0, 9), (8, 1, 7), (9, 0, 4)];
const VALKEY_2026_07: &[Version] = &[(7, 2, 14), (8, 0, 10), (8, 1, 9), (9, 0, 5), (9, 1, 1)];

const fn redis(id: &'static str, what: &'static str, since: Version, fixed: &'static [Version]) -> Cve {
    Cve { id, what, software: "redis", since, fixed }
}

const fn valkey(id: &'static str, what: &'static str, since: Version, fixed: &'static [Version]) -> Cve {
    Cve { id, what, software: "valkey", since, fixed }
}

const KNOWN: [Cve; 19] = [
    redis("CVE-2025-49844", BY_SCRIPT, ALWAYS, REDIS_2025_10),
    redis("CVE-2025-46817", BY_SCRIPT, ALWAYS, REDIS_2025_10),
    redis("CVE-2026-25243", BY_RESTORE, ALWAYS, REDIS_2026_05),
    redis("CVE-2026-23479", BY_BLOCKING, (7, 2, 0), REDIS_2026_05),
    redis(
        JULY,
        "serious ones without a number, by which any code may be run in the server",
        ALWAYS,
        REDIS_2026_07,
    ),
    redis(
        "CVE-2026-62356",
        "a crafted RESTORE of a count-min sketch can write outside of its memory",
        (8, 8, 0),
        &[(8, 8, 2)],
    ),
    redis(SEPTEMBER, BY_RULES, (8, 6, 0), &[(8, 6, 7), (8, 8, 3), (8, 10, 2)]),
    // Of 8.4 it is not known whether it has them.
    redis(SEPTEMBER, BY_RULES, (8, 2, 0), &[(8, 2, 10)]),
    redis(
        "CVE-2025-62507",
        "an XACKDEL of an authenticated user can run any code in the server",
        (8, 2, 0),
        &[(8, 2, 3)],
    ),
    redis(
        "CVE-2025-32023",
        "crafted HyperLogLog commands of an authenticated user can write outside of their memory",
        ALWAYS,
        &[(6, 2, 19), (7, 2, 10), (7, 4, 5), (8, 0, 3)],
    ),
    redis("CVE-2025-21605", BY_BUFFERS, ALWAYS, &[(6, 2, 18), (7, 2, 8), (7, 4, 3)]),
    redis("CVE-2024-46981", BY_SCRIPT, ALWAYS, &[(6, 2, 17), (7, 2, 7), (7, 4, 2)]),
    valkey("CVE-2025-49844", BY_SCRIPT, ALWAYS, &[(7, 2, 11), (8, 0, 6), (8, 1, 4)]),
    valkey("CVE-2026-25243", BY_RESTORE, ALWAYS, VALKEY_2026_05),
    valkey("CVE-2026-23479", BY_BLOCKING, ALWAYS, VALKEY_2026_05),
    valkey(
        "CVE-2026-23631",
        "a full sync while a script yields can let an authenticated user run any code in the server",
        ALWAYS,
        VALKEY_2026_05,
    ),
    valkey(
        "CVE-2026-56684",
        "with TLS, a CLIENT KILL of an authenticated user can run any code in the server",
        ALWAYS,
        VALKEY_2026_07,
    ),
    valkey(
        "CVE-2026-63639",
        "a corrupt stream that is loaded can run any code in the server",
        ALWAYS,
        VALKEY_2026_07,
    ),
    // Of 7.2 it is not known for certain which release has the fix.
    valkey("CVE-2025-21605", BY_BUFFERS, (8, 0, 0), &[(8, 0, 3), (8, 1, 1)]),
];

/// What a version is vulnerable to, each with the nearest release that is not.
pub fn of(software: &str, version: &str) -> Vec<(Cve, String)> {
    let Some(version) = parse(version) else { return Vec::new() };
    let known = KNOWN.iter().filter(|cve| cve.software == software);
    known.filter_map(|cve| cve.mended_by(version).map(|(a, b, c)| (*cve, format!("{a}.{b}.{c}")))).collect()
}

impl Cve {
    /// The release to go to; `None` for a version that has the fix. A line without one has to be left.
    fn mended_by(&self, version: Version) -> Option<Version> {
        let line = |version: Version| (version.0, version.1);
        if version < self.since {
            return None;
        }
        let next = self.fixed.iter().copied().find(|fixed| line(*fixed) >= line(version))?;
        (version < next).then_some(next)
    }
}

pub fn parse(version: &str) -> Option<Version> {
    let mut parts = version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(software: &str, version: &str) -> Vec<String> {
        of(software, version).into_iter().map(|(cve, fix)| format!("{} {fix}", cve.id)).collect()
    }

    #[test]
    fn a_version_is_vulnerable_until_the_fix_of_its_own_line() {
        assert_eq!(
            ids("redis", "7.4.8"),
            ["CVE-2026-25243 7.4.9".to_owned(), "CVE-2026-23479 7.4.9".into(), format!("{JULY} 7.4.10")]
        );
        assert_eq!(ids("redis", "7.4.9"), [format!("{JULY} 7.4.10")]);
        assert!(ids("redis", "7.4.10").is_empty() && ids("redis", "6.2.23").is_empty());
        assert_eq!(
            ids("redis", "8.8.0"),
            [format!("{JULY} 8.8.1"), "CVE-2026-62356 8.8.2".into(), format!("{SEPTEMBER} 8.8.3")]
        );
        assert_eq!(ids("redis", "8.2.9"), [format!("{SEPTEMBER} 8.2.10")]);
        assert!(ids("redis", "8.8.3").is_empty() && ids("redis", "8.4.5").is_empty());
        assert_eq!(ids("redis", "8.10.0"), [format!("{SEPTEMBER} 8.10.2")], "it began with the others");
        assert_eq!(ids("valkey", "8.1.7"), ["CVE-2026-56684 8.1.9", "CVE-2026-63639 8.1.9"]);
        assert!(ids("valkey", "8.1.9").is_empty() && ids("valkey", "7.2.14").is_empty());
        assert!(ids("valkey", "8.1.3").contains(&"CVE-2025-49844 8.1.4".to_owned()));
        assert!(ids("valkey", "8.1.0").contains(&"CVE-2025-21605 8.1.1".to_owned()));
        assert_eq!(ids("valkey", "9.1.0"), ["CVE-2026-56684 9.1.1", "CVE-2026-63639 9.1.1"]);
        assert!(ids("valkey", "8.0.8").contains(&"CVE-2026-25243 8.0.9".to_owned()), "8.0.8 was withdrawn");
    }

    #[test]
    fn a_line_without_a_fix_has_to_be_left() {
        assert!(ids("redis", "7.0.15").contains(&"CVE-2025-49844 7.2.11".to_owned()));
        assert!(ids("redis", "8.0.6").contains(&"CVE-2026-25243 8.2.6".to_owned()));
    }

    #[test]
    fn a_version_before_the_fault_does_not_have_it() {
        let has = |version, id: &str| ids("redis", version).iter().any(|found| found.starts_with(id));
        assert!(has("7.2.0", "CVE-2026-23479") && !has("6.2.21", "CVE-2026-23479"));
        assert!(has("8.2.2", "CVE-2025-62507") && !has("8.0.5", "CVE-2025-62507"));
        assert!(
            !has("8.6.4", "CVE-2026-62356")
                && !ids("valkey", "7.2.8").iter().any(|id| id.starts_with("CVE-2025-21605"))
        );
    }

    #[test]
    fn the_fixed_releases_of_each_are_in_ascending_order() {
        for cve in KNOWN {
            assert!(cve.fixed.is_sorted() && cve.fixed.last() > Some(&cve.since), "{}", cve.id);
        }
    }

    #[test]
    fn a_version_nobody_can_read_says_nothing() {
        assert_eq!(parse("7.0.15"), Some((7, 0, 15)));
        assert_eq!(parse("8.2.0-rc1"), Some((8, 2, 0)));
        assert!(ids("redis", "unstable").is_empty() && ids("dragonfly", "1.0.0").is_empty());
    }
}

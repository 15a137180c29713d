//! What Sidekiq calls its keys: by its own rules, with the prefix of `redis-namespace` where an application has one.

/// Makes the names of Sidekiq's keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    namespace: String,
}

impl Names {
    /// Names under a namespace; empty: none.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned() }
    }

    /// Any key.
    pub fn key(&self, name: &str) -> String {
        if self.namespace.is_empty() { name.to_owned() } else { format!("{}:{name}", self.namespace) }
    }

    /// The list of a queue.
    pub fn queue(&self, name: &str) -> String {
        self.key(&format!("queue:{name}"))
    }

    /// The set of all queues' names.
    pub fn queues(&self) -> String {
        self.key("queues")
    }

    /// Failed jobs, by the time of their next try.
    pub fn retry(&self) -> String {
        self.key("retry")
    }

    /// Jobs for later, by the time they are due.
    pub fn schedule(&self) -> String {
        self.key("schedule")
    }

    /// Jobs that were given up, by the time of their death.
    pub fn dead(&self) -> String {
        self.key("dead")
    }

    /// The set of the processes that run jobs.
    pub fn processes(&self) -> String {
        self.key("processes")
    }

    /// The set of queues that nobody may fetch from.
    pub fn paused(&self) -> String {
        self.key("paused")
    }

    /// A counter, in all or of one day: `processed`, `failed`.
    pub fn stat(&self, what: &str, day: Option<&str>) -> String {
        match day {
            None => self.key(&format!("stat:{what}")),
            Some(day) => self.key(&format!("stat:{what}:{day}")),
        }
    }
}

# frozen_string_literal: true

# A server middleware: what it notes shows that the jobs ran inside it.
class NotesTheRun
  KEY = "example:notes"

  def self.note(text)
    Sidekiq.redis { |redis| redis.rpush(KEY, text) }
  end

  def call(_worker, job, _queue)
    yield
    self.class.note("ran #{job["jid"]}")
  end
end

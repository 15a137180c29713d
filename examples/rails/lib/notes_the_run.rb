# frozen_string_literal: true

# A server middleware: what it notes shows that the jobs ran inside it, and inside of Rails.
class NotesTheRun
  KEY = "example:notes"

  def self.note(text)
    Sidekiq.redis { |redis| redis.rpush(KEY, text) }
  end

  def call(_worker, job, _queue)
    yield
    self.class.note("ran #{job["jid"]}#{" in Rails' executor" if Rails.application.executor.active?}")
  end
end

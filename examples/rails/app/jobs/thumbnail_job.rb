# frozen_string_literal: true

# A plain Sidekiq job. It takes as long as it is told, and notes its arguments as they arrived.
class ThumbnailJob
  include Sidekiq::Worker

  sidekiq_options queue: "default", retry: 3

  def perform(name, seconds = 0, *more)
    NotesTheRun.note("began #{name}")
    sleep(seconds)
    NotesTheRun.note("made #{name} #{JSON.generate(more)}")
  end
end

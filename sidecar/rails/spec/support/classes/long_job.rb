# frozen_string_literal: true

require "sidekiq"

# Takes as long as it is told, and notes its end whatever it is.
class LongJob
  include Sidekiq::Worker

  def perform(seconds)
    NotesTheRun.note("began")
    sleep(seconds)
    NotesTheRun.note("made")
  ensure
    NotesTheRun.note("ended")
  end
end

# frozen_string_literal: true

require "notes_the_run"

# Nothing here knows of jobqueue: this is how the application was set up for Sidekiq itself. The sidecar runs the
# server block, as a Sidekiq process does.
Sidekiq.configure_server do |config|
  config.server_middleware { |chain| chain.add NotesTheRun }
  config.death_handlers << ->(job, _exception) { NotesTheRun.note("died #{job["jid"]}") }
  config.on(:shutdown) { NotesTheRun.note("stopped") }
end

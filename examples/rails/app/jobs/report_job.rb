# frozen_string_literal: true

# An ActiveJob, which Sidekiq gets in a wrapper.
class ReportJob < ApplicationJob
  queue_as :default

  def perform(name, at:)
    NotesTheRun.note("reported #{name} #{at.iso8601} #{provider_job_id}")
  end
end

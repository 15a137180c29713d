# frozen_string_literal: true

module Jobqueue
  # What a job dies of when Ruby code raised nothing: the exception that its handlers are given.
  class JobDied < StandardError
    # As the worker says it in the job's `error_class` and `error_message`.
    def self.of(job)
      name = job["error_class"].to_s[/\AJobqueue::(\w+)\z/, 1]
      kind = CAUSES.include?(name) ? Jobqueue.const_get(name, false) : self
      kind.new(job["error_message"].to_s)
    end
  end

  # No answer in time; its process died again and again; for want of memory; an answer that was none; our own fault.
  CAUSES = %w[Timeout Poison OutOfMemory HandlerError Panic].freeze
  CAUSES.each { |name| const_set(name, Class.new(JobDied)) }

  # An earlier run of the job, which its worker gave up waiting for, has not ended in this process.
  class StillRunning < JobDied
    MESSAGE = "an earlier run of this job, longer than the worker's timeout, has not ended"
  end
end

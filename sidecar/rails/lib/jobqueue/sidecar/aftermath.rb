# frozen_string_literal: true

require "jobqueue/sidecar/failed_job"
require "jobqueue/sidecar/retry_rule"
require "jobqueue/sidecar/verdict"

module Jobqueue
  module Sidecar
    # What follows a failure on the Ruby side: the class' `sidekiq_retry_in` and `sidekiq_retries_exhausted`, and the
    # death handlers. Their word becomes the verdict; the worker carries it out.
    class Aftermath
      # `last` is the worker's word on whether this was the last attempt (nil: it did not say).
      def initialize(job, sidekiq:, last: nil)
        @job = job
        @sidekiq = sidekiq
        @last = last
      end

      # `job_class` is nil when it could not be loaded.
      def of_failure(exception, job_class)
        failed = failed_job(exception, job_class)
        case decide(failed)
        when :never then never_retried(failed.job, exception)
        when :exhausted then exhausted(failed.job, exception, job_class)
        else retried(failed, exception, job_class)
        end
      end

      # The worker gives the job up, whatever its retries.
      def of_death(exception, job_class)
        job = failed_job(exception, job_class).job
        job["retry"] ? exhausted(job, exception, job_class) : never_retried(job, exception)
      end

      private

      def failed_job(exception, job_class)
        job = @job["retry"].nil? ? @job.merge("retry" => default_retry(job_class)) : @job
        FailedJob.new(job, exception, backtrace: backtrace(exception))
      end

      # The lines that the job asks for, if it does.
      def backtrace(exception)
        asked = @job["backtrace"]
        @sidekiq.backtrace(exception, asked) if asked
      end

      def never_retried(job, exception)
        run_death_handlers(job, exception)
        verdict(exception, discard: true)
      end

      def exhausted(job, exception, job_class)
        said = guarded("Error calling retries_exhausted", job) do
          ask(block_of(job_class, :sidekiq_retries_exhausted_block), job, exception)
        end
        forgotten = job["dead"] == false || said == :discard
        run_death_handlers(forgotten ? discarded(job) : job, exception)
        verdict(exception, **(forgotten ? { discard: true } : { kill: true }))
      end

      def decide(failed)
        return :never unless failed.job["retry"]
        # Of a job that does not say, the worker cannot know what its class says; and the time of one that may be retried
        # for some time may have ended since.
        unless @last.nil? || @job["retry"].nil? || (@last == false && @job["retry_for"])
          return @last ? :exhausted : :again
        end

        RetryRule.after_failure(failed.job, count: failed.count, max_retries: @sidekiq.max_retries,
                                            failed_at: failed.failed_at, now: Time.now.to_f,
                                            retry_for_alone: SidekiqRuntime.since?("8.1"))
      end

      def retried(failed, exception, job_class)
        said = guarded("Failure scheduling retry using the defined `sidekiq_retry_in` in #{job_class}, " \
                       "falling back to default") do
          ask(block_of(job_class, :sidekiq_retry_in_block), failed.count, exception, failed.job)
        end
        case said
        when :kill then exhausted(failed.job, exception, job_class)
        when :discard
          run_death_handlers(discarded(failed.job), exception) if SidekiqRuntime.since?("8.0.7")
          verdict(exception, discard: true)
        else
          seconds = said.respond_to?(:to_i) ? said.to_i : 0
          # Without jitter, which is the worker's to add, as it does to its own delays.
          verdict(exception, **(seconds.positive? ? { retry_in: seconds } : {}))
        end
      end

      def verdict(exception, **words)
        Verdict.failed(exception, backtrace: backtrace(exception), **words)
      end

      # As its handlers see it.
      def discarded(job)
        return job unless SidekiqRuntime.since?("8.0.8")

        job.merge("discarded_at" => Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond))
      end

      def run_death_handlers(job, exception)
        @sidekiq.death_handlers.each do |handler|
          guarded("Error calling death handler", job) { handler.call(job, exception) }
        end
      end

      # An ActiveJob class says it itself; the wrapper says nothing.
      def block_of(job_class, name)
        wrapped = @job["wrapped"]
        job_class = Object.const_get(wrapped) if wrapped
        job_class.public_send(name) if job_class.respond_to?(name)
      end

      # With as many arguments as it takes: the third came with Sidekiq 6.5, and a lambda for two refuses it.
      def ask(block, *args)
        return if block.nil?

        kinds = block.parameters.map(&:first)
        args = args.first((kinds - [:block]).size) if block.lambda? && !kinds.include?(:rest)
        block.call(*args)
      end

      def default_retry(job_class)
        job_class.respond_to?(:get_sidekiq_options) ? job_class.get_sidekiq_options["retry"] : true
      end

      # The blocks are the application's: one that fails changes nothing about the job.
      def guarded(context, job = nil)
        yield
      rescue @sidekiq.shutdown
        raise
      rescue Exception => e # rubocop:disable Lint/RescueException
        @sidekiq.report(e, { context: context, job: job }.compact)
        nil
      end
    end
  end
end

# frozen_string_literal: true

require "jobqueue/sidecar/aftermath"
require "jobqueue/sidecar/runs"
require "jobqueue/sidecar/verdict"

module Jobqueue
  module Sidecar
    # One run of a job, wrapped as Sidekiq's own processor wraps it: job logger, reloader (which includes the Rails
    # executor), server middleware, perform.
    class Execution
      # `json` is the job as it was sent: middleware may change the parsed one, and what follows a failure is decided
      # on the former. `queue` is the one that it was fetched from, if that is known: as a rule the one that it names.
      # `context` is what the log lines of this run carry beside jid and class.
      def initialize(job, json, sidekiq:, queue: nil, last: nil, context: {}, stopping: -> { false })
        @job = job
        @json = json
        @queue = queue || job["queue"]
        @sidekiq = sidekiq
        @last = last
        @context = context
        @stopping = stopping
        @verdict = nil
      end

      def call(running = Runs::Run.new)
        @running = running
        started = now
        run.with(execution_time: (now - started).round(6))
      end

      # Runs no `perform`: the worker gave the job up, and says why.
      def die(exception)
        @sidekiq.in_capsule { reloaded { aftermath.of_death(exception, known_class) } }
      end

      # Nor does this: it must not run now, which is one of its failures.
      def refuse(exception)
        @sidekiq.in_capsule { reloaded { aftermath.of_failure(exception, known_class) } }
      end

      private

      def known_class
        constantize(@job["class"])
      rescue NameError
        nil
      end

      def run
        @sidekiq.in_capsule { logged { reloaded { attempt } } }
        Verdict.done
      rescue Exception => e # rubocop:disable Lint/RescueException
        # Whatever a job raises, `exit` and SyntaxError too, is about that job and not about this process.
        return Verdict.interrupted if caused_by_shutdown?(e)

        # Judged already, unless it is not from the job but from around it: the reloader, the loggers.
        @verdict || judge(e, nil)
      end

      def aftermath
        Aftermath.new(@sidekiq.parse(@json), sidekiq: @sidekiq, last: @last)
      end

      def logged(&block)
        logger = @sidekiq.job_logger
        logger.prepare(@job) do
          Thread.current[:sidekiq_context]&.merge!(@context)
          logger.call(@job, @queue, &block)
        end
      end

      def reloaded(&block)
        @sidekiq.reloader.call(&block)
      end

      def attempt
        job_class = nil
        job_class = constantize(@job["class"])
        instance = job_class.new
        instance.jid = @job["jid"]
        instance._context = self if instance.respond_to?(:_context=)
        @sidekiq.server_middleware.invoke(instance, @job, @queue) { instance.perform(*@job["args"]) }
      rescue Exception => e # rubocop:disable Lint/RescueException
        raise if caused_by_shutdown?(e)

        @verdict = judge(e, job_class)
        @verdict = @verdict.with(unknown_class: true) if job_class.nil? && e.is_a?(NameError)
        raise
      end

      def judge(exception, job_class)
        if exception.is_a?(@sidekiq.handled)
          # Middleware has dealt with the job itself (rescheduled it, most often): it must not be run again.
          # What it skips it has dealt with for good: Sidekiq tells nobody either.
          report(exception.cause) if exception.cause && !exception.is_a?(@sidekiq.skipped)
          return Verdict.failed(exception.cause || exception, discard: true)
        end
        report(exception)
        return Verdict.failed(exception) if @running.given_up?

        aftermath.of_failure(exception, job_class)
      end

      def report(exception)
        # Neither its message nor the job: both may hold what nobody should read in a log.
        @sidekiq.logger.warn("Job raised #{exception.class.name}")
        @sidekiq.report(exception, { context: "Job raised exception", job: @job })
      end

      # What IterableJob asks: whether to stop at the next good place.
      def stopping?
        @stopping.call
      end
      public :stopping?

      def constantize(name)
        raise NameError, "the job names no class" unless name.is_a?(String) && !name.empty?

        name.sub(/\A::/, "").split("::").inject(Object) { |scope, part| scope.const_get(part, scope.equal?(Object)) }
      end

      # Sidekiq's word for it, ours, and Puma's; also as the cause of what the job made of it.
      def caused_by_shutdown?(exception)
        seen = []
        while exception && !seen.include?(exception.object_id)
          return true if exception.is_a?(@sidekiq.shutdown)
          return true if defined?(Puma::ThreadPool::ForceShutdown) && exception.is_a?(Puma::ThreadPool::ForceShutdown)

          seen << exception.object_id
          exception = exception.cause
        end
        false
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end

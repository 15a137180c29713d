# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # Start and stop of the process, as a Sidekiq process does them: no new jobs at once, running ones may end within
    # the timeout, then they are interrupted and given back. The application's hooks are called on the way.
    class Lifecycle
      # How many seconds Puma has to end after the last job: five until it raises in what is left, five for that to heed it.
      PUMA_ENDS_WITHIN = 12

      def initialize(gate, sidekiq:, stop_timeout:)
        @gate = gate
        @sidekiq = sidekiq
        @stop_timeout = stop_timeout
        @stopping = false
        @lock = Mutex.new
      end

      def start
        @sidekiq.fire(:startup)
        @sidekiq.logger.info("Ready for #{@gate.capacity} jobs at once")
      end

      # Returns when nothing runs any more. Later calls do nothing.
      def stop
        return if @lock.synchronize { @stopping.tap { @stopping = true } }

        @gate.close
        @sidekiq.logger.info("Stopping: #{@gate.busy} jobs run and may take #{@stop_timeout} s to end")
        @sidekiq.fire(:quiet)
        # Beside each other, as in a Sidekiq process: jobs may wait for what a hook does, and a slow hook takes none of
        # their time.
        stopping = Thread.new { @gate.stop(@stop_timeout) }
        @sidekiq.fire(:shutdown)
        interrupted = stopping.value
        @sidekiq.logger.warn("Interrupted #{interrupted} jobs: they will run again elsewhere") if interrupted.positive?
        # Since Sidekiq 8.0.2; nobody can have hooks for it before.
        @sidekiq.fire(:exit)
      end
    end
  end
end

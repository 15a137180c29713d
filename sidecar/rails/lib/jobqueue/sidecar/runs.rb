# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # The runs of jobs in this process: never two of one job at once. A worker that gave up waiting, or was started
    # again, asks for a second run while the first goes on; and a job that hangs would take one slot after the other.
    class Runs
      # One run.
      class Run
        # Until when its worker waits for it, by the clock of the runs; nil: nobody said.
        attr_reader :deadline

        def initialize(deadline = nil)
          @deadline = deadline
          @given_up = false
        end

        # The worker waits for it no longer, and what follows a last failure has been done when it ends.
        def give_up
          @given_up = true
        end

        def given_up?
          @given_up
        end
      end

      def initialize(clock: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) })
        @clock = clock
        @lock = Mutex.new
        @runs = {}
      end

      # Yields a run and answers what the block answered; or, while the job runs here already, :running, and :overdue
      # once its worker has given up waiting for that. A job without a name cannot be told from another.
      def during(jid, deadline = nil)
        run = Run.new(deadline)
        return yield run if jid.nil?

        earlier = @lock.synchronize { @runs[jid] || ((@runs[jid] = run) && nil) }
        if earlier
          return earlier.deadline && earlier.deadline < @clock.call ? :overdue : :running
        end

        begin
          yield run
        ensure
          @lock.synchronize { @runs.delete(jid) }
        end
      end

      def give_up(jid)
        @lock.synchronize { @runs[jid]&.give_up }
      end
    end
  end
end

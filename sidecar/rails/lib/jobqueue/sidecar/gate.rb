# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # How many jobs run at once, and whether any more may start. A job that is refused here was not run, and costs
    # nothing: the answer is 503.
    class Gate
      # How many run beside the slots at most: what is short and must not wait for the jobs in them.
      BEYOND = 1

      # What is raised in a job that did not end in time; Sidekiq's own class when it is loaded, because jobs and
      # middleware know it.
      attr_reader :capacity, :interrupt

      def initialize(capacity, interrupt:, clock: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) })
        @capacity = capacity
        @interrupt = interrupt
        @clock = clock
        # The threads in their slots, and until when somebody waits for each; nil: for ever.
        @running = {}
        @open = true
        @lock = Mutex.new
        @changed = ConditionVariable.new
      end

      def now
        @clock.call
      end

      def busy
        @lock.synchronize { @running.size }
      end

      def open?
        @lock.synchronize { @open }
      end

      # Every slot is taken by a job that nobody waits for any more: this process does no work, and only an end of it
      # frees a slot.
      def stuck?
        @lock.synchronize { @running.size >= capacity && overdue? }
      end

      # Runs the block in a slot and answers what it answered; :full or :closed without running it. `beyond` runs it
      # beside the slots when they are taken. After `deadline`, by `now`, nobody waits for it.
      # Everything but the block itself is safe from the interruption of `stop`.
      def run(beyond: false, deadline: nil, &block)
        Thread.handle_interrupt(interrupt => :never) do
          refusal = enter(beyond, deadline)
          return refusal if refusal

          begin
            Thread.handle_interrupt(interrupt => :immediate, &block)
          ensure
            leave
          end
        end
      end

      # No job starts any more; those that run go on. Answers whether it was open.
      def close
        @lock.synchronize { @open.tap { @open = false } }
      end

      # Waits until nothing runs that somebody waits for, `timeout` seconds at most (nil: as long as it takes).
      def drain(timeout)
        ends = timeout && (now + timeout)
        @lock.synchronize do
          until @running.empty? || overdue? || (ends && now >= ends)
            # A deadline that passes wakes nobody.
            @changed.wait(@lock, 1)
          end
        end
      end

      # Closes, waits until nothing runs, and interrupts what still does after `timeout` seconds.
      # Answers how many jobs were interrupted.
      def stop(timeout)
        deadline = now + timeout
        @lock.synchronize do
          @open = false
          while @running.any? && (left = deadline - now).positive?
            @changed.wait(@lock, left)
          end
          # Under the lock: a thread in the list is in its slot, so nothing else can be hit.
          @running.each_key { |thread| thread.raise(interrupt) }.size
        end
      end

      private

      def overdue?
        @running.each_value.all? { |deadline| deadline && deadline < now }
      end

      def enter(beyond, deadline)
        @lock.synchronize do
          return :closed unless @open
          return :full if @running.size >= capacity + (beyond ? BEYOND : 0)

          @running[Thread.current] = deadline
          nil
        end
      end

      def leave
        @lock.synchronize do
          @running.delete(Thread.current)
          @changed.broadcast
        end
        # An interruption that came when the job had just ended is of no use to anybody, least of all to the next
        # request of this thread.
        begin
          Thread.handle_interrupt(interrupt => :immediate) { Thread.pass }
        rescue interrupt
          nil
        end
      end
    end
  end
end

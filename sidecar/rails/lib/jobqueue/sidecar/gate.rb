# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # How many jobs run at once, and whether any more may start. A job that is refused here was not run, and costs
    # nothing: the answer is 503.
    class Gate
      # What is raised in a job that did not end in time; Sidekiq's own class when it is loaded, because jobs and
      # middleware know it.
      attr_reader :capacity, :interrupt

      def initialize(capacity, interrupt:)
        @capacity = capacity
        @interrupt = interrupt
        @running = []
        @open = true
        @lock = Mutex.new
        @emptied = ConditionVariable.new
      end

      def busy
        @lock.synchronize { @running.size }
      end

      def open?
        @lock.synchronize { @open }
      end

      # Runs the block in a slot and answers what it answered; :full or :closed without running it.
      # Everything but the block itself is safe from the interruption of `stop`.
      def run(&block)
        Thread.handle_interrupt(interrupt => :never) do
          refusal = enter
          return refusal if refusal

          begin
            Thread.handle_interrupt(interrupt => :immediate, &block)
          ensure
            leave
          end
        end
      end

      # No job starts any more; those that run go on.
      def close
        @lock.synchronize { @open = false }
      end

      # Closes, waits until nothing runs, and interrupts what still does after `timeout` seconds.
      # Answers how many jobs were interrupted.
      def stop(timeout)
        deadline = now + timeout
        @lock.synchronize do
          @open = false
          while @running.any? && (left = deadline - now).positive?
            @emptied.wait(@lock, left)
          end
          # Under the lock: a thread in the list is in its slot, so nothing else can be hit.
          @running.each { |thread| thread.raise(interrupt) }.size
        end
      end

      private

      def enter
        @lock.synchronize do
          return :closed unless @open
          return :full if @running.size >= capacity

          @running << Thread.current
          nil
        end
      end

      def leave
        @lock.synchronize do
          @running.delete(Thread.current)
          @emptied.broadcast if @running.empty?
        end
        # An interruption that came when the job had just ended is of no use to anybody, least of all to the next
        # request of this thread.
        begin
          Thread.handle_interrupt(interrupt => :immediate) { Thread.pass }
        rescue interrupt
          nil
        end
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end

# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # How many jobs run at once, and whether any more may start. A job that is refused here was not run, and costs
    # nothing: the answer is 503.
    class Gate
      # How many run beside the slots at most: what is short and must not wait for the jobs in them.
      BEYOND = 1

      # For how many seconds a job that was told to stop is not started. A request for it may have been on its way when the
      # order came; who asks again after the worker has given the job back waits a little.
      HALTED_FOR = 5

      # What is known of a thread in its slot: until when somebody waits for it (nil: for ever), which job it is (nil:
      # nobody may stop it by name), whether it was asked to stop, and whether it was interrupted.
      Slot = Struct.new(:deadline, :name, :asked, :interrupted)

      # What is raised in a job that did not end in time; Sidekiq's own class when it is loaded, because jobs and
      # middleware know it.
      attr_reader :capacity, :interrupt

      def initialize(capacity, interrupt:, clock: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) })
        @capacity = capacity
        @interrupt = interrupt
        @clock = clock
        # The slots by their threads.
        @running = {}
        # Jobs that were told to stop, and until when they are not started.
        @halted = {}
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

      # Runs the block in a slot and answers what it answered; :full, :closed or :halted without running it. `beyond` runs
      # it beside the slots when they are taken. After `deadline`, by `now`, nobody waits for it. `halt` knows it by `name`.
      # Everything but the block itself is safe from the interruption of `stop`.
      def run(beyond: false, deadline: nil, name: nil, &block)
        Thread.handle_interrupt(interrupt => :never) do
          refusal = enter(beyond, Slot.new(deadline, name))
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

      # Whether the job of this thread should stop at the next good place.
      def stopping?
        @lock.synchronize { !@open || @running[Thread.current]&.asked || false }
      end

      # Asks the jobs of these names to stop; who does not look goes on. Answers how many of them have not ended.
      def ask(names)
        @lock.synchronize { named(names).each_value { |slot| slot.asked = true }.size }
      end

      # Interrupts the jobs of these names, each once: whatever they do about it must not be interrupted in turn. Answers
      # how many of them have not ended.
      def halt(names)
        @lock.synchronize do
          @halted.delete_if { |_, ends| ends <= now }
          names.each { |name| @halted[name] = now + HALTED_FOR }
          # Under the lock: a thread in the list is in its slot, so nothing else can be hit.
          named(names).each do |thread, slot|
            thread.raise(interrupt) unless slot.interrupted
            slot.interrupted = true
          end.size
        end
      end

      private

      def named(names)
        @running.select { |_, slot| slot.name && names.include?(slot.name) }
      end

      def overdue?
        @running.each_value.all? { |slot| slot.deadline && slot.deadline < now }
      end

      def enter(beyond, slot)
        @lock.synchronize do
          return :closed unless @open
          return :halted if @halted.fetch(slot.name, 0) > now
          return :full if @running.size >= capacity + (beyond ? BEYOND : 0)

          @running[Thread.current] = slot
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

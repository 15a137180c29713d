# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # Ends a process that does no work any more: every slot is held by a job that nobody waits for. Kubernetes would by its
    # probe; Compose and systemd only start again what has ended.
    class Watchdog
      INTERVAL = 1

      # `patience` is for how many seconds it may be stuck; `stop` ends the process.
      def initialize(gate, sidekiq:, patience:, stop:)
        @gate = gate
        @sidekiq = sidekiq
        @patience = patience
        @stop = stop
        @since = nil
      end

      def start
        return if @patience.nil?

        Thread.new { sleep(INTERVAL) until look }
      end

      # Answers whether it has ended the process.
      def look
        return (@since = nil) unless @gate.stuck?

        @since ||= @gate.now
        return false if @gate.now - @since < @patience

        @sidekiq.logger.error("Stopping: for #{@patience} s every slot has been held by a job that nobody waits for")
        @stop.call
        true
      end
    end
  end
end

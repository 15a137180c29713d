# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # Secrets in a file that may be replaced at any time, as Kubernetes does with a mounted Secret: one a line, so that
    # the old and the new one are both accepted while they are being exchanged.
    class Secret
      # How old what is known of the file may be, in seconds: as long as the worker keeps its copy.
      MAX_AGE = 10

      # What stands around a secret and is no part of it. As the worker has it: Ruby's own `strip` would take bytes of a key
      # that the worker signs with (NUL, vertical tab).
      BLANK = /\A[ \t\n\f\r]+|[ \t\n\f\r]+\z/n.freeze

      class << self
        def bare(content)
          content.b.gsub(BLANK, "")
        end
      end

      def initialize(path, clock: -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) })
        @path = path
        @clock = clock
        @lock = Mutex.new
        @known = nil
        @read_at = nil
      end

      # The whole file is one candidate (a key of any bytes), and each line of it.
      def candidates
        @lock.synchronize do
          read if @read_at.nil? || @clock.call - @read_at >= MAX_AGE
          @known
        end
      end

      def inspect
        "#<#{self.class.name} #{@path}>"
      end

      private

      def read
        content = self.class.bare(File.binread(@path))
        raise Error, "#{@path} is empty" if content.empty?

        @known = [content, *content.lines.map { |line| self.class.bare(line) }.reject(&:empty?)].uniq
        @read_at = @clock.call
      rescue SystemCallError, Error
        # A file that is just being replaced is no reason to stop: what was known may well be valid.
        raise if @known.nil?

        @read_at = @clock.call
      end
    end
  end
end

# frozen_string_literal: true

require "jobqueue/sidecar/secret"

module Jobqueue
  module Sidecar
    # Everything that can be set, read once from the environment. All problems are told at once.
    class Settings
      # Threads of Puma beside those of the slots: one for the handlers of a job that is given up, two for /health and the
      # 503 when every slot is taken.
      SPARE_THREADS = 3
      LOOPBACK_BIND = %r{\A(?:unix://|\w+://(?:127\.\d+\.\d+\.\d+|\[::1\]|localhost)(?::|/|\?|\z))}.freeze

      attr_reader :bind, :concurrency, :stop_timeout, :max_body_bytes, :memory_limit_bytes, :memory_drain_timeout,
                  :clock_skew, :token_file, :hmac_key_file, :stuck_timeout, :log_format

      def initialize(env = ENV)
        @env = env
        @problems = []
        @bind = text("JOBQUEUE_BIND") || "tcp://127.0.0.1:#{text("PORT") || 3000}"
        @concurrency = integer("JOBQUEUE_CONCURRENCY", integer("RAILS_MAX_THREADS", 5, 1..1000), 1..1000)
        # Sidekiq's own default.
        @stop_timeout = integer("JOBQUEUE_STOP_TIMEOUT", 25, 0..86_400)
        @max_body_bytes = integer("JOBQUEUE_MAX_BODY_BYTES", 32 << 20, 1..(512 << 20))
        mib = integer("JOBQUEUE_MEMORY_LIMIT_MB", 0, 0..(1 << 24))
        @memory_limit_bytes = mib.zero? ? nil : mib << 20
        seconds = integer("JOBQUEUE_MEMORY_DRAIN_TIMEOUT", 0, 0..86_400)
        @memory_drain_timeout = seconds.zero? ? nil : seconds
        @clock_skew = integer("JOBQUEUE_CLOCK_SKEW", 300, 1..86_400)
        @token_file = text("JOBQUEUE_TOKEN_FILE")
        @hmac_key_file = text("JOBQUEUE_HMAC_KEY_FILE")
        # Longer than a probe takes to act: where there is one, it comes first.
        seconds = integer("JOBQUEUE_STUCK_TIMEOUT", 60, 0..86_400)
        @stuck_timeout = seconds.zero? ? nil : seconds
        @log_format = word("JOBQUEUE_LOG_FORMAT", %w[text json])
        secret_files_hold_something
        strangers_are_refused
        raise Error, @problems.join("\n") unless @problems.empty?
      end

      # Nobody but processes of this machine, or pod, can connect.
      def local?
        LOOPBACK_BIND.match?(bind)
      end

      def threads
        concurrency + SPARE_THREADS
      end

      private

      def text(name)
        value = @env[name].to_s.strip
        value unless value.empty?
      end

      def integer(name, default, range)
        value = text(name)
        return default if value.nil?

        number = Integer(value, 10, exception: false)
        return number if number && range.cover?(number)

        @problems << "#{name}: #{value.inspect}: must be an integer from #{range.min} to #{range.max}"
        default
      end

      # One of `words`, the first of which is the default.
      def word(name, words)
        value = text(name) || words.first
        @problems << "#{name}: #{value.inspect}: must be #{words.join(" or ")}" unless words.include?(value)
        value
      end

      # Jobs are code: whoever may post one may run it. That others can connect has to be meant.
      def strangers_are_refused
        wish = text("JOBQUEUE_WITHOUT_SECRET")
        if wish && wish != "loopback"
          @problems << "JOBQUEUE_WITHOUT_SECRET: #{wish.inspect}: must be loopback, or not set"
        elsif !local? && !token_file && !hmac_key_file && !wish
          @problems << "JOBQUEUE_BIND: #{bind.inspect}: others can connect: set JOBQUEUE_TOKEN_FILE or " \
                       "JOBQUEUE_HMAC_KEY_FILE, or JOBQUEUE_WITHOUT_SECRET=loopback to take jobs over loopback alone"
        end
      end

      # A secret that is empty would be guessed by anybody; one that cannot be read refuses every job. Neither is
      # found out at the first job.
      def secret_files_hold_something
        { "JOBQUEUE_TOKEN_FILE" => token_file, "JOBQUEUE_HMAC_KEY_FILE" => hmac_key_file }.each do |name, path|
          next if path.nil?

          @problems << "#{name}: #{path.inspect}: the file is empty" if Secret.bare(File.binread(path)).empty?
        rescue SystemCallError => e
          @problems << "#{name}: #{path.inspect}: #{e.message.sub(/ @ .*/, "")}"
        end
      end
    end
  end
end

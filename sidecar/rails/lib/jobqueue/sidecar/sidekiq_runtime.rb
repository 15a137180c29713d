# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # The parts of the application's Sidekiq that run around a job, under one name whatever the version: 6 keeps them
    # in the module itself, 7 and 8 in a configuration object.
    class SidekiqRuntime
      VERSION = Gem::Version.new(Sidekiq::VERSION)
      CONFIG_OBJECT = Sidekiq.respond_to?(:default_configuration)
      DEFAULT_MAX_RETRIES = 25

      class << self
        def since?(version)
          VERSION >= Gem::Version.new(version)
        end
      end

      def parse(json)
        Sidekiq.load_json(json)
      end

      def logger
        Sidekiq.logger
      end

      def shutdown
        Sidekiq::Shutdown
      end

      def handled
        Sidekiq::JobRetry::Handled
      end

      def skipped
        Sidekiq::JobRetry::Skip
      end

      def options
        return Sidekiq.default_configuration if CONFIG_OBJECT

        # 6.5 is a hash itself and warns about `options`.
        Sidekiq.respond_to?(:[]) ? Sidekiq : Sidekiq.options
      end

      # Connections to Redis, which jobs use to enqueue others, are sized by it.
      def concurrency=(number)
        CONFIG_OBJECT ? options.concurrency = number : options[:concurrency] = number
      end

      # `Sidekiq.redis` of what runs in the block has the pool with that many connections, as in a processor's thread; the
      # one outside has ten, whatever the concurrency.
      def in_capsule
        return yield unless CONFIG_OBJECT

        begin
          before = Thread.current[:sidekiq_capsule]
          Thread.current[:sidekiq_capsule] = Sidekiq.default_configuration.default_capsule
          yield
        ensure
          Thread.current[:sidekiq_capsule] = before
        end
      end

      def max_retries
        options[:max_retries] || DEFAULT_MAX_RETRIES
      end

      def reloader
        options[:reloader] || proc { |&block| block.call }
      end

      def server_middleware
        (CONFIG_OBJECT ? Sidekiq.default_configuration : Sidekiq).server_middleware
      end

      def death_handlers
        (CONFIG_OBJECT ? Sidekiq.default_configuration : Sidekiq).death_handlers
      end

      # A new one for each job: it may keep what it knows of one.
      def job_logger
        logger_class = options[:job_logger] || Sidekiq::JobLogger
        return logger_class.new unless CONFIG_OBJECT

        logger_class.new(self.class.since?("7.3") ? options : logger)
      end

      def backtrace(exception, asked)
        lines = exception.backtrace || []
        cleaner = options[:backtrace_cleaner]
        lines = cleaner.call(lines) if cleaner
        asked == true ? lines : lines.first([asked.to_i, 0].max)
      end

      # The application's own error handlers (error trackers). Sidekiq's default one is left out: it would write
      # the whole job into the log, arguments included.
      def report(exception, context)
        error_handlers.each do |handler|
          takes_config = handler.respond_to?(:arity) ? handler.arity.abs > 2 || handler.arity == -1 : false
          CONFIG_OBJECT && takes_config ? handler.call(exception, context, options) : handler.call(exception, context)
        rescue Exception => e # rubocop:disable Lint/RescueException
          logger.error("An error handler failed itself: #{e.class.name}")
        end
      end

      # :startup, :quiet, :shutdown and :exit, as in a Sidekiq process.
      def fire(event)
        hooks = options[:lifecycle_events] && options[:lifecycle_events][event]
        Array(event == :startup ? hooks : hooks&.reverse).each do |hook|
          hook.call
        rescue StandardError => e
          report(e, { context: "Exception during Sidekiq lifecycle event.", event: event })
        end
      end

      private

      def error_handlers
        handlers = (CONFIG_OBJECT ? Sidekiq.default_configuration : Sidekiq).error_handlers
        handlers.reject { |handler| logs_the_job?(handler) }
      end

      def logs_the_job?(handler)
        return handler.equal?(Sidekiq::Config::ERROR_HANDLER) if defined?(Sidekiq::Config::ERROR_HANDLER)
        return handler.equal?(Sidekiq::DEFAULT_ERROR_HANDLER) if defined?(Sidekiq::DEFAULT_ERROR_HANDLER)

        defined?(Sidekiq::ExceptionHandler::Logger) && handler.is_a?(Sidekiq::ExceptionHandler::Logger)
      end
    end
  end
end

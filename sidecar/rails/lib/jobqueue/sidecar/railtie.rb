# frozen_string_literal: true

require "rails/railtie"

module Jobqueue
  module Sidecar
    # Changes an application only in a sidecar process; a web server or a console with the gem stays as it is.
    class Railtie < Rails::Railtie
      initializer "jobqueue.sidecar.active_job_logs" do
        next unless Sidecar.booted?

        # ActiveJob logs the arguments of every job unless told otherwise, and of one that fails the exception's message.
        ActiveSupport.on_load(:active_job) do
          self.log_arguments = false if respond_to?(:log_arguments=)
          require "active_job/log_subscriber"
          ActiveJob::LogSubscriber.prepend(FailuresWithoutMessages)
        end
      end

      config.after_initialize do
        if Sidecar.booted?
          Sidecar.log_as_json if Sidecar.settings.log_format == "json"
          Sidecar.check_database_pool
        end
      end
    end

    # What an exception says quotes the job's data, as often as not.
    module FailuresWithoutMessages
      def perform(event)
        exception = event.payload[:exception_object]
        return super if exception.nil?

        error do
          "Error performing #{named(event)}: #{exception.class.name}\n" \
            "#{Array(exception.backtrace).join("\n")}"
        end
      end

      # Since Rails 7.1 these too have the message.
      def enqueue_retry(event)
        exception = event.payload[:error]
        return super if exception.nil?

        info { "Retrying #{named(event)} in #{event.payload[:wait].to_i} seconds: #{exception.class.name}" }
      end

      def retry_stopped(event)
        executions = event.payload[:job].executions
        error { "Stopped retrying #{named(event)} after #{executions} attempts: #{event.payload[:error].class.name}" }
      end

      def discard(event)
        error { "Discarded #{named(event)}: #{event.payload[:error].class.name}" }
      end

      private

      def named(event)
        job = event.payload[:job]
        "#{job.class.name} (Job ID: #{job.job_id})"
      end
    end

    # Sidekiq's lines and Rails', which are most often the same stream. After the application has made its loggers.
    def self.log_as_json
      [Sidekiq.logger, Rails.logger].compact.uniq.each do |logger|
        formatter = Sidekiq::Logger::Formatters::JSON.new
        # Rails keeps the tags of a line in its formatter.
        formatter.extend(ActiveSupport::TaggedLogging::Formatter) if logger.respond_to?(:tagged)
        logger.formatter = formatter
      end
    end

    # A pool smaller than the number of jobs at once makes jobs fail that have done nothing wrong.
    def self.check_database_pool
      return unless defined?(ActiveRecord::Base)

      pool = ActiveRecord::Base.connection_pool.size
      return if pool >= settings.concurrency

      Sidekiq.logger.warn("The database pool has #{pool} connections for #{settings.concurrency} jobs at once: " \
                          "raise `pool` in config/database.yml, or jobs will fail waiting for one")
    rescue ActiveRecord::ActiveRecordError
      # No database is configured: there is no pool to be too small.
      nil
    end
  end
end

# frozen_string_literal: true

# Executes the Sidekiq jobs of a Rails application for a jobqueue worker, which fetches them from Redis and
# posts them here. The worker alone decides what becomes of a job in Redis; this side runs the Ruby code around it
# (middleware, retry blocks, death handlers) and answers in the words of README.md, "The contract".
module Jobqueue
  module Sidecar
    class Error < StandardError; end

    class << self
      # Whether this process is a sidecar, rather than a web server or a console that only has the gem.
      def booted?
        @booted == true
      end

      # boot.rb says so, before the application is loaded.
      def booted!
        @booted = true
      end

      def settings
        @settings ||= Settings.new
      end

      # The one application of this process, made on first use: what it is made of must be loaded by then.
      def app
        require "jobqueue/sidecar/app"
        @app ||= App.new(settings)
      end
    end
  end
end

require "jobqueue/sidecar/version"
require "jobqueue/sidecar/settings"

# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), __dir__)
ENV["RAILS_ENV"] = "test"
# The way config.ru does it: first Sidekiq as a server, then the application, then ours.
require "logger"
require "jobqueue/sidecar/boot"
require "support/application"
require "support/jobs"
require "support/eventually"
require "support/redis_server"
require "support/sidekiq_versions"
require "support/slots"
require "jobqueue/sidecar/app"
require "rack/mock"

# Rails' logger is made to write to Sidekiq's as the application starts.
SidekiqVersions.config.logger = Sidekiq::Logger.new(IO::NULL)
Rails.application.initialize!
# Sidekiq 7 has Rails clean backtraces, and to Rails a spec is no part of the application.
Rails.backtrace_cleaner.remove_silencers!

# Debian's redis gem announces a change that its Sidekiq has not heard of.
Redis.sadd_returns_boolean = false if Redis.respond_to?(:sadd_returns_boolean=)

RSpec.configure do |config|
  config.include Eventually
  config.include Slots
  config.disable_monkey_patching!
  config.order = :random
  config.before(:suite) do
    puts "Sidekiq #{Sidekiq::VERSION}, Rails #{Rails.version}, Ruby #{RUBY_VERSION}"
  end
  # The log is looked at, not shown.
  config.before do
    @log = StringIO.new
    logger = Sidekiq::Logger.new(@log, level: Logger::DEBUG)
    logger.formatter = Sidekiq::Logger::Formatters::Pretty.new
    SidekiqVersions.config.logger = logger
    Events.clear
  end
end

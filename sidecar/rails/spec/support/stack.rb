# frozen_string_literal: true

require "securerandom"
require "yaml"
require "support/processes"

# The services of examples/rails/compose.yaml with their own commands and variables, as processes on this machine: names
# of hosts and secrets are the only things that change.
class Stack
  include Eventually

  FILE = File.join(Sidecar::ROOT, "compose.yaml")
  PASSWORD = "pa55word"
  # What the images say: the entrypoint of the worker, the variables of the application.
  APP_ENV = { "RAILS_ENV" => "production", "RAILS_LOG_TO_STDOUT" => "1", "JOBQUEUE_SIDECAR_PATH" => Sidecar::GEM,
              "BUNDLE_GEMFILE" => NewerRuby.gemfile, "RUBYOPT" => "-W0" }.freeze

  def initialize
    @services = YAML.safe_load(File.read(FILE), aliases: true).fetch("services")
    @directory = Dir.mktmpdir("jobqueue-stack")
    @token = File.join(@directory, "token").tap { |path| File.write(path, "#{SecureRandom.hex(32)}\n") }
    @ports = Hash.new { |ports, name| ports[name] = RedisServer.free_port }
    @programs = {}
  end

  def redis_url
    "redis://:#{PASSWORD}@127.0.0.1:#{@ports["redis"]}/0"
  end

  def web_url
    "http://127.0.0.1:#{@ports["web"]}"
  end

  def port(name)
    @ports[name]
  end

  def [](name)
    @programs.fetch(name)
  end

  def start(name, **env)
    service = @services.fetch(name)
    command = [*entrypoint(name), *service["command"].map { |word| here(word) }]
    # A container has the port to itself.
    command += ["--port", @ports["redis"].to_s, "--bind", "127.0.0.1"] if name == "redis"
    @programs[name] = Program.new(*command, env: { **defaults(name), **variables(name), **env.transform_keys(&:to_s) },
                                            chdir: name == "redis" ? @directory : Sidecar::ROOT)
    eventually("#{name} is ready:\n#{self[name].output}", timeout: 40) { ready?(name) }
  end

  # What its health check in the compose file says, asked as Docker does: in its own environment. A worker has to be started
  # with the port named `metrics`.
  def healthy?(name)
    kind, *command = @services.fetch(name).fetch("healthcheck").fetch("test")
    raise "#{name}: only CMD can be run here" unless kind == "CMD"

    programs = { "/worker" => ENV.fetch("JOBQUEUE_WORKER"), "ruby" => NewerRuby.path || "ruby" }
    command = command.map { |word| programs[word] || here(word) }
    port = { "OBSERVABILITY_METRICS_PORT" => @ports["metrics"].to_s }
    system({ **variables(name), **port }, *command, out: File::NULL, err: File::NULL)
  end

  # What the application had before: a Sidekiq process on the same queues. Whoever starts it stops it.
  def start_sidekiq(**env)
    Program.new("bundle", "exec", "sidekiq", "-q", "critical", "-q", "default", "-c", "5",
                env: { **APP_ENV, "REDIS_URL" => redis_url, **env.transform_keys(&:to_s) }, chdir: Sidecar::ROOT)
  end

  def stop
    failed = %w[worker app web redis].filter_map do |name|
      @programs.delete(name)&.stop
      nil
    rescue StandardError => e
      # The others are stopped all the same.
      e
    end
    FileUtils.rm_rf(@directory)
    raise failed.first if failed.any?
  end

  private

  # From the network of the containers to this machine.
  def here(text)
    text.gsub(/\$\{REDIS_PASSWORD[^}]*\}/, PASSWORD)
        .gsub("redis:6379", "127.0.0.1:#{@ports["redis"]}")
        .gsub("app:3000", "127.0.0.1:#{@ports["app"]}")
        .gsub("0.0.0.0:3000", "127.0.0.1:#{@ports["app"]}")
        .gsub("0.0.0.0:8080", "127.0.0.1:#{@ports["web"]}")
        .gsub('"127.0.0.1", 3000', %("127.0.0.1", #{@ports["app"]}))
        .gsub('"127.0.0.1", 8080', %("127.0.0.1", #{@ports["web"]}))
        .gsub("/run/secrets/sidecar_token", @token)
  end

  def variables(name)
    @services.fetch(name)["environment"].transform_values { |value| here(value.to_s) }
  end

  def entrypoint(name)
    name == "worker" ? [ENV.fetch("JOBQUEUE_WORKER")] : []
  end

  def defaults(name)
    case name
    when "web", "app" then APP_ENV
    # Any free one: the default may be taken on this machine.
    when "worker" then { "OBSERVABILITY_METRICS_PORT" => "0", "OBSERVABILITY_LOG_LEVEL" => "debug" }
    else {}
    end
  end

  def ready?(name)
    raise "#{name} ended:\n#{self[name].output}" if self[name].ended?

    case name
    when "redis" then Redis.new(url: redis_url).ping
    # As Sidekiq Web sees it.
    when "worker" then Redis.new(url: redis_url).smembers("processes").any? { |id| id.split(":")[1] == self[name].pid.to_s }
    else TCPSocket.new("127.0.0.1", @ports[name]).close.nil?
    end
  rescue Redis::BaseConnectionError, SystemCallError
    false
  end
end

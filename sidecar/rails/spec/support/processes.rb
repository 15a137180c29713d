# frozen_string_literal: true

require "fileutils"
require "json"
require "net/http"
require "socket"
require "tmpdir"
require "support/eventually"
require "support/redis_server"

# A program that was started for a spec; its output is kept to be looked at.
class Program
  include Eventually

  attr_reader :pid

  def initialize(*command, env: {}, chdir: Dir.pwd)
    @log = File.join(Dir.mktmpdir("jobqueue-spec"), "log")
    @pid = Process.spawn(env, *NewerRuby.command(command), chdir: chdir, out: [@log, "w"], err: %i[child out], unsetenv_others: false)
    @status = nil
    @stopped = false
  end

  def output
    File.read(@log)
  end

  def signal(name)
    Process.kill(name, pid) unless ended?
  end

  def ended?
    @status ||= begin
      _, status = Process.wait2(pid, Process::WNOHANG)
      status
    end
    !@status.nil?
  end

  # The status, once the program has ended.
  def wait(timeout: 20)
    eventually("the end of #{pid}:\n#{output}", timeout: timeout) { ended? }
    @status
  end

  def kill
    signal(:KILL)
    wait
  end

  # Later calls do nothing.
  def stop
    return if @stopped

    @stopped = true
    begin
      signal(:TERM)
      wait(timeout: 40)
    ensure
      kill
      FileUtils.rm_rf(File.dirname(@log))
    end
  end
end

# A newer Ruby with its own Rails, Sidekiq and Puma, unpacked beside Debian's (scripts/newer-sidekiq); its commands have to
# be named by their paths, and it has no `rails` of which all parts are there.
module NewerRuby
  module_function

  def path
    ENV["JOBQUEUE_SPEC_RUBY"]
  end

  def command(words)
    return words if path.nil? || words.first(2) != %w[bundle exec]

    name, *rest = words.drop(2)
    [path, name == "jobqueue-sidecar" ? "#{Sidecar::GEM}/exe/#{name}" : "#{File.dirname(path)}/tree/usr/bin/#{name}", *rest]
  end

  def gemfile
    return if path.nil?

    @gemfile ||= File.join(Dir.mktmpdir("jobqueue-gems"), "Gemfile").tap do |file|
      at_exit { FileUtils.rm_rf(File.dirname(file)) }
      gems = %w[puma railties activejob actionpack sidekiq].map { |name| "gem #{name.inspect}" }
      File.write(file, [*gems, "gem \"jobqueue-sidecar\", path: #{Sidecar::GEM.inspect}"].join("\n"))
    end
  end
end

# The example application with the sidecar in front, as its users start it.
class Sidecar < Program
  ROOT = File.expand_path("../../../../examples/rails", __dir__)
  GEM = File.expand_path("../..", __dir__)

  attr_reader :port

  def self.start(redis, **env)
    new(redis, **env).tap(&:ready)
  end

  def initialize(redis, port: RedisServer.free_port, **env)
    @port = port
    env = { "REDIS_URL" => redis.url, "PORT" => port.to_s, "JOBQUEUE_SIDECAR_PATH" => GEM, "RAILS_ENV" => "production",
            "RAILS_LOG_TO_STDOUT" => "1", "BUNDLE_GEMFILE" => NewerRuby.gemfile, "RUBYOPT" => "-W0" }
          .merge(env.transform_keys(&:to_s))
    super("bundle", "exec", "jobqueue-sidecar", env: env, chdir: ROOT)
  end

  def ready
    eventually("the sidecar answers", timeout: 40) do
      raise "it ended:\n#{output}" if ended?

      health&.first == 200
    end
  end

  def health
    answer = Net::HTTP.get_response(URI("http://127.0.0.1:#{port}/health"))
    [answer.code.to_i, JSON.parse(answer.body)]
  rescue SystemCallError, EOFError
    nil
  end

  def post(job, path: "/jobs/execute", headers: {})
    body = job.is_a?(String) ? job : JSON.generate(job)
    http = Net::HTTP.new("127.0.0.1", port)
    http.read_timeout = 60
    # A second request would hide what the first met.
    http.max_retries = 0
    http.post(path, body, { "Content-Type" => "application/json" }.merge(headers))
  end
end

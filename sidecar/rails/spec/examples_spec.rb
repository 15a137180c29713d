# frozen_string_literal: true

require "open3"
require "support/processes"
require "support/structural_schema"

RSpec.describe "The files of examples/rails" do
  let(:root) { File.expand_path("../../..", __dir__) }

  it "have a compose file that Compose accepts, and that asks for the password" do
    compose = %w[docker-compose].find { |command| system("which", command, out: File::NULL) } || "docker compose"
    check = ->(env) { Open3.capture2e(env, "#{compose} -f #{Sidecar::ROOT}/compose.yaml config --quiet") }
    output, status = check.call("REDIS_PASSWORD" => "x")
    expect(status).to be_success, output
    output, status = check.call("REDIS_PASSWORD" => nil)
    expect([status.success?, output]).to match([false, /choose one/])
  end

  it "have a JobQueue whose every field the resource knows" do
    schema = StructuralSchema.of_jobqueue("#{root}/crds/jobqueues.yaml")
    queues = YAML.load_stream(File.read("#{Sidecar::ROOT}/jobqueue.yaml")).select { |object| object["kind"] == "JobQueue" }
    expect(queues.size).to eq(1)
    expect(schema.problems(queues.first)).to eq([])
    expect(schema.problems(queues.first.merge("spec" => { "protocol" => "sidekick", "qeues" => [] })))
      .to eq(['spec.protocol: "sidekick" is none of files, sidekiq, async', "spec.qeues: unknown field"])
  end

  it "have a Redis that refuses before it is killed, and a health check for every service" do
    services = YAML.safe_load(File.read("#{Sidecar::ROOT}/compose.yaml"), aliases: true)["services"]
    redis = services["redis"]
    words = redis["command"].each_cons(2).to_h
    limit = Integer(redis["deploy"]["resources"]["limits"]["memory"].delete_suffix("M"))
    expect([words["--maxmemory-policy"], Integer(words["--maxmemory"].delete_suffix("mb"))]).to match(["noeviction", 1..(limit * 3 / 4)])
    expect(services.reject { |_, service| service["healthcheck"] }.keys).to eq([])
  end

  it "agree on how many jobs the application takes and the worker sends" do
    services = YAML.safe_load(File.read("#{Sidecar::ROOT}/compose.yaml"), aliases: true)["services"]
    expect(services["app"]["environment"]["JOBQUEUE_CONCURRENCY"]).to eq(services["worker"]["environment"]["WORKER_COUNT"])
    worker = YAML.load_stream(File.read("#{Sidecar::ROOT}/jobqueue.yaml")).last["spec"]["worker"]
    env = worker["template"]["spec"]["containers"].first["env"].map { |variable| variable["name"] }
    # The operator sets it, to the worker's concurrency.
    expect(env).not_to include("JOBQUEUE_CONCURRENCY", "JOBQUEUE_BIND")
  end

  it "have a secret that the worker shows to the application" do
    objects = YAML.load_stream(File.read("#{Sidecar::ROOT}/jobqueue.yaml"))
    name = objects.last["spec"]["worker"]["handler"]["http"]["secretRef"]["name"]
    secret = objects.find { |object| object["kind"] == "Secret" && object["metadata"]["name"] == name }
    expect(secret["stringData"].keys).to eq(["token"])
  end

  it "leave out of the images what is left out of the repository: the token, logs, somebody's gems" do
    lines = ->(name) { File.readlines("#{Sidecar::ROOT}/#{name}", chomp: true).reject { |line| line.empty? || line.start_with?("#") } }
    ignored = lines.call(".gitignore").map { |line| line.delete_prefix("/").delete_suffix("/") }
    expect(ignored).to include("secrets", ".gems", ".bundle")
    expect(lines.call("Dockerfile.dockerignore")).to include(*ignored.map { |name| "**/#{name}" })
  end

  it "have a Dockerfile whose layout starts, with nothing to write to" do
    Dir.mktmpdir do |image|
      FileUtils.cp_r("#{root}/sidecar/rails", "#{image}/sidecar")
      FileUtils.cp_r("#{root}/examples/rails", "#{image}/app")
      FileUtils.rm_f("#{image}/app/Gemfile.lock")
      env = { "JOBQUEUE_SIDECAR_PATH" => "#{image}/sidecar", "GEM_HOME" => "#{image}/gems", "BUNDLE_GEMFILE" => nil }
      install = File.read("#{Sidecar::ROOT}/Dockerfile")[/^RUN (bundle .*)/, 1]
      output, status = Open3.capture2e(env, install, chdir: "#{image}/app")
      expect(status).to be_success, output
      before = Dir["#{image}/**/*", "#{image}/**/.*"].sort
      asked = <<~RUBY
        require "jobqueue/sidecar/boot"
        require "./config/environment"
        puts Jobqueue::Sidecar.app.call("PATH_INFO" => "/health", "REQUEST_METHOD" => "GET").last
      RUBY
      env.merge!("BUNDLE_FROZEN" => "true", "RAILS_ENV" => "production", "RAILS_LOG_TO_STDOUT" => "1", "RUBYOPT" => "-W0")
      output, status = Open3.capture2e(env, "bundle", "exec", "ruby", "-e", asked, chdir: "#{image}/app")
      expect(status).to be_success, output
      expect(output).to include('"rails_loaded":true')
      output, status = Open3.capture2e(env, "bundle", "exec", "jobqueue-sidecar", "--version", chdir: "#{image}/app")
      expect(status).to be_success, output
      expect(Dir["#{image}/**/*", "#{image}/**/.*"].sort).to eq(before)
    end
  end
end

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

  it "agree on how many jobs the application takes and the worker sends" do
    services = YAML.safe_load(File.read("#{Sidecar::ROOT}/compose.yaml"), aliases: true)["services"]
    expect(services["app"]["environment"]["JOBQUEUE_CONCURRENCY"]).to eq(services["worker"]["environment"]["WORKER_COUNT"])
    worker = YAML.load_stream(File.read("#{Sidecar::ROOT}/jobqueue.yaml")).last["spec"]["worker"]
    env = worker["template"]["spec"]["containers"].first["env"].to_h { |variable| [variable["name"], variable["value"]] }
    expect(env["JOBQUEUE_CONCURRENCY"]).to eq(worker["concurrency"].to_s)
  end

  it "have a Dockerfile whose layout starts, with nothing to write to" do
    Dir.mktmpdir do |image|
      FileUtils.cp_r("#{root}/sidecar/rails", "#{image}/sidecar")
      FileUtils.cp_r("#{root}/examples/rails", "#{image}/app")
      FileUtils.rm_f("#{image}/app/Gemfile.lock")
      env = { "JOBQUEUE_SIDECAR_PATH" => "#{image}/sidecar", "BUNDLE_GEMFILE" => nil }
      lock = File.read("#{Sidecar::ROOT}/Dockerfile")[/^RUN JOBQUEUE_SIDECAR_PATH=\S+ (.*)/, 1]
      output, status = Open3.capture2e(env, lock, chdir: "#{image}/app")
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
      expect(Dir["#{image}/**/*", "#{image}/**/.*"].sort).to eq(before)
    end
  end
end

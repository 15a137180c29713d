# frozen_string_literal: true

# A job that is many small ones, and stops between two of them.
RSpec.describe "An IterableJob" do
  before do
    skip "there are none before Sidekiq 7.3" unless defined?(Sidekiq::IterableJob)
    @redis = RedisServer.start
    @before = Sidekiq.default_configuration.instance_variable_get(:@redis_config)
    use(url: @redis.url)
  end

  after do
    next if @redis.nil?

    use(@before)
    @redis.stop
  end

  # Pools keep what they were made with.
  def use(redis)
    config = Sidekiq.default_configuration
    config.redis = redis
    config.instance_variable_set(:@redis, nil)
    %i[@redis @redis_pool].each { |pool| config.default_capsule.instance_variable_set(pool, nil) }
  end

  let(:app) { Jobqueue::Sidecar::App.new(Jobqueue::Sidecar::Settings.new("JOBQUEUE_CONCURRENCY" => "1")) }
  let(:web) { Rack::MockRequest.new(app) }
  let(:job) { { "class" => "CountsToFive", "args" => [], "jid" => "it1", "queue" => "default", "retry" => true } }

  def post(body, path: "/jobs/execute")
    JSON.parse(web.post(path, :input => JSON.generate(body), "CONTENT_TYPE" => "application/json",
                               "REMOTE_ADDR" => "127.0.0.1").body)
  end

  it "stops at a good place when the worker is about to, is enqueued again by itself, and goes on from there" do
    running = Thread.new { post(job) }
    Waits::STARTED.pop
    expect(post({ jids: ["it1"], gently: true }, path: "/jobs/interrupt")).to include("running" => 1)
    Waits::GO << true
    # Not to be retried: its own middleware has pushed it.
    expect(running.value).to include("status" => "failure", "discard" => true)
    expect(Events.to_a.select { |event| event.first == :counted }).to eq([[:counted, 1], [:counted, 2]])
    expect(Events.to_a.map(&:first)).not_to include(:died, :exhausted, :reported_error)
    pushed = JSON.parse(@redis.client.rpop("queue:default"))
    expect(pushed).to include("jid" => "it1", "class" => "CountsToFive")
    expect(post(pushed)).to include("status" => "success")
    expect(Events.to_a.select { |event| event.first == :counted }.map(&:last)).to eq([1, 2, 3, 4, 5])
  end
end

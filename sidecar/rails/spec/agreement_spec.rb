# frozen_string_literal: true

require "sidekiq/api"
require "sidekiq/processor"

# Sidekiq itself is the judge: the same job is run by its own processor on a real Redis and by the sidecar, and what
# becomes of the job, which blocks run and with what must be the same.
RSpec.describe "Agreement with Sidekiq" do
  before(:context) do
    @redis = RedisServer.start
    SidekiqVersions.config.redis = { url: @redis.url }
  end

  after(:context) do
    SidekiqVersions.config.redis = { url: "redis://127.0.0.1:1/0" }
    @redis.stop
  end

  before { @redis.client.flushall }

  let(:app) { Jobqueue::Sidecar::App.new(Jobqueue::Sidecar::Settings.new({})) }

  def job(name, **fields)
    # As a client of this version writes it: what is written later is of the same type.
    created_at = Jobqueue::Sidecar::SidekiqRuntime.since?("8.0") ? 1_700_000_000_500 : 1_700_000_000.5
    { "class" => name, "args" => [1], "jid" => "j1", "queue" => "default", "created_at" => created_at }
      .merge(fields.transform_keys(&:to_s))
  end

  # What Sidekiq's processor makes of a job.
  def by_sidekiq(job)
    Events.clear
    begin
      SidekiqVersions.process(JSON.generate(job))
    rescue Exception # rubocop:disable Lint/RescueException
      nil
    end
    fate = { "retry" => :retried, "dead" => :dead }.find { |key, _| @redis.client.zcard(key).positive? }
    entry = fate && JSON.parse(@redis.client.zrange(fate.first, 0, -1).first)
    score = fate && @redis.client.zrange(fate.first, 0, -1, with_scores: true).first.last
    { fate: fate ? fate.last : :gone, entry: entry, in: score && (score - Time.now.to_f), events: events }
  end

  def by_sidecar(job, **headers)
    Events.clear
    answer = Rack::MockRequest.new(app).post("/jobs/execute", :input => JSON.generate(job), "REMOTE_ADDR" => "127.0.0.1",
                                                                    "CONTENT_TYPE" => "application/json", **headers)
    said = JSON.parse(answer.body)
    fate = said["kill"] ? :dead : :retried
    fate = :gone if said["discard"] || said["status"] == "success"
    { fate: fate, said: said, events: events }
  end

  # Sidekiq reports an error after what follows from it, we before: only the order differs.
  def events
    Events.to_a.sort_by(&:inspect)
  end

  jobs = {
    "that succeeds" => ["Echo", {}],
    "that fails for the first time" => ["Fails", { retry: true }],
    "that fails again" => ["Fails", { retry: true, retry_count: 7, failed_at: 1_700_000_000.1 }],
    "that fails for the last time" => ["Fails", { retry: true, retry_count: 24, failed_at: 1_700_000_000.1 }],
    "that fails at one before the last" => ["Fails", { retry: true, retry_count: 23, failed_at: 1_700_000_000.1 }],
    "with a number of retries left" => ["Fails", { retry: 3, retry_count: 1 }],
    "with a number of retries used up" => ["Fails", { retry: 3, retry_count: 2 }],
    "with no retries" => ["Fails", { retry: 0 }],
    "without retries" => ["Fails", { retry: false }],
    "whose class says that there are none" => ["Once", {}],
    "whose class says how many there are" => ["FailsOnce", {}],
    "whose class says nothing" => ["Fails", {}],
    "that is not kept among the dead" => ["Fails", { retry: 0, dead: false }],
    "whose class says when" => ["FailsAndSaysWhen", { retry: true }],
    "whose class fails to say when" => ["FailsAndAsksWrongly", { retry: true }],
    "with a backtrace" => ["Fails", { retry: true, backtrace: 3 }],
    "with a queue for retries" => ["Fails", { retry: 0, retry_queue: "slow" }],
    "of an unknown class" => ["No::Such", { retry: true }],
    "of an unknown class at its end" => ["No::Such", { retry: 0 }],
    "that exits" => ["Exits", { retry: true, args: [] }]
  }
  jobs.each do |name, (klass, fields)|
    it "holds for a job #{name}" do
      theirs = by_sidekiq(job(klass, **fields))
      ours = by_sidecar(job(klass, **fields))
      expect(ours[:fate]).to eq(theirs[:fate])
      expect(ours[:events]).to eq(theirs[:events])
      next if theirs[:entry].nil?

      # Further lines of a message quote the source that raised: theirs or ours.
      error = ->(known) { [known["error_class"], known["error_message"].lines.first] }
      expect(error[ours[:said]]).to eq(error[theirs[:entry]])
      expect(ours[:said]["backtrace"]&.size).to eq(fields[:backtrace])
    end
  end

  it "holds for what becomes of a job that names no class" do
    [{ retry: true }, { retry: 3 }, { retry: 0 }, { retry: false }].each do |fields|
      expect(by_sidecar(job(nil, **fields))[:fate]).to eq(by_sidekiq(job(nil, **fields))[:fate]), fields.inspect
      @redis.client.flushall
    end
  end

  it "holds for the queue that middleware is told" do
    # Moved since it was enqueued.
    moved = job("Echo", queue: "elsewhere")
    expect(by_sidecar(moved, "HTTP_X_JOB_QUEUE" => "default")[:events]).to eq(by_sidekiq(moved)[:events])
  end

  it "holds for a job whose class is retried more often than is usual, and that does not say it" do
    [98, 99].each do |count|
      failed = job("FailsVeryOften", retry_count: count, failed_at: 1_700_000_000.1)
      expect(by_sidecar(failed)[:fate]).to eq(by_sidekiq(failed)[:fate]), count.to_s
      @redis.client.flushall
    end
  end

  it "holds for the delay that a class asks for, but for the jitter" do
    theirs = by_sidekiq(job("FailsAndSaysWhen", retry: true))[:in]
    expect(theirs).to be_between(85, 100)
    expect(by_sidecar(job("FailsAndSaysWhen", retry: true))[:said]["retry_in"]).to eq(90)
  end

  it "holds for the job that blocks and handlers are given" do
    seen = []
    noting = ->(job, _exception) { seen << job }
    SidekiqVersions.config.death_handlers << noting
    failed = job("Fails", retry: 3, retry_count: 2, failed_at: 1_700_000_000.1, retry_queue: "slow", extra: [1.5],
                          backtrace: 2, error_backtrace: "of the failure before")
    by_sidekiq(failed)
    by_sidecar(failed)
    theirs, ours = seen
    expect(ours.keys.sort).to eq(theirs.keys.sort)
    expect(ours.except("retried_at", "error_backtrace")).to eq(theirs.except("retried_at", "error_backtrace"))
    # Only the first line is the job's, the second its caller's.
    lines = [theirs, ours].map { |job| JSON.parse(Zlib::Inflate.inflate(job["error_backtrace"].unpack1("m"))) }
    expect(lines.map(&:size)).to eq([2, 2])
    expect(lines.map(&:first).uniq).to match([/jobs\.rb:\d+/])
    expect(ours["retried_at"].class).to eq(theirs["retried_at"].class)
  ensure
    SidekiqVersions.config.death_handlers.delete(noting)
  end
end

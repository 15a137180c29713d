# frozen_string_literal: true

require "net/http"
require "sidekiq/api"
require "support/browser"
require "support/certificates"
require "support/stack"

# Everything together, from `perform_async` in a real Rails application to Sidekiq's own pages: Redis, web server, sidecar and
# worker, started as compose.yaml says.
RSpec.describe "The stack of the example", :worker do
  before(:context) do
    @stack = Stack.new
    @stack.start("redis")
    @redis = Redis.new(url: @stack.redis_url)
    # This process is a client of the same Redis, as a console of the application would be.
    SidekiqVersions.config.redis = { url: @stack.redis_url }
    [Thread.new { @stack.start("web") }, Thread.new { @stack.start("app") }].each(&:join)
    start_worker
  end

  after(:context) do
    @redis.close
    @stack.stop
  end

  # With short waits: the jobs of a killed worker are back after the least time there is, and an application that was away
  # is asked again soon.
  def start_worker(**env)
    @stack.start("worker", WORKER_HEARTBEAT_TTL: "5s", CIRCUIT_BREAKER_COOLDOWN_PERIOD: "1s", **env)
  end

  # Settled, whatever became of it: nothing waits and nothing runs.
  after do
    eventually("all is settled", timeout: 60) { Sidekiq::Workers.new.size.zero? && Sidekiq::Queue.all.sum(&:size).zero? }
    @redis.del("example:notes", "retry", "dead", "schedule")
  end

  def push(name, *args, **fields)
    Sidekiq::Client.push({ "class" => name, "args" => args }.merge(fields.transform_keys(&:to_s)))
  end

  def notes
    @redis.lrange("example:notes", 0, -1)
  end

  it "runs what the application enqueues, in its middleware: plain jobs and ActiveJobs" do
    processed = Sidekiq::Stats.new.processed
    jids = %w[thumbnail report].map do |job|
      answer = Net::HTTP.post(URI("#{@stack.web_url}/enqueue/#{job}"), "")
      expect(answer.code).to eq("201"), answer.body
      JSON.parse(answer.body).fetch("jid")
    end
    jids.each { |jid| eventually("#{jid} ran") { notes.include?("ran #{jid} in Rails' executor") } }
    expect(notes).to include('made cat.png [{"width":120}]', /\Areported sales .* #{jids.last}\z/)
    eventually("both are counted", timeout: 30) { Sidekiq::Stats.new.processed >= processed + 2 }
  end

  it "has health checks that know a service that is well from one that is not" do
    @stack["worker"].stop
    start_worker(OBSERVABILITY_METRICS_PORT: @stack.port("metrics").to_s)
    expect(%w[web app worker].map { |name| [name, @stack.healthy?(name)] }).to eq([["web", true], ["app", true], ["worker", true]])
    @stack["app"].signal(:STOP)
    expect(@stack.healthy?("app")).to be(false)
    @stack["app"].signal(:CONT)
    @stack["worker"].stop
    expect(@stack.healthy?("worker")).to be(false)
  ensure
    @stack["app"].signal(:CONT)
    @stack["worker"].stop
    start_worker
  end

  it "hands arguments over as they were sent" do
    args = [12_345_678_901_234_567_890_123, 1e-300, 0.1, -0.0, { "ü" => [[[]], {}, nil, true] }, "😀\u0000\n\"", "x" * 900_000]
    push("ThumbnailJob", "args", 0, *args)
    made = eventually("it ran") { notes.find { |note| note.start_with?("made args") } }
    expect(JSON.parse(made.delete_prefix("made args "))).to eq(args)
  end

  it "runs scheduled jobs when they are due" do
    push("ThumbnailJob", "later", at: Time.now.to_f + 1)
    expect(Sidekiq::ScheduledSet.new.size).to eq(1)
    eventually("it ran", timeout: 30) { notes.include?("made later []") }
    expect(Sidekiq::ScheduledSet.new.size).to eq(0)
  end

  it "retries what fails as its class says, with what Sidekiq would have written" do
    # By hand, so that the retry does not come while we look.
    jid = push("ChargeJob", "bob", queue: "critical", retry: 2, backtrace: 5)
    entry = eventually("it is among the retries") { Sidekiq::RetrySet.new.find { |job| job.jid == jid } }
    expect(entry.item).to include("error_class" => "ChargeJob::Declined", "error_message" => "the card of bob was declined",
                                  "retry_count" => 0, "queue" => "critical", "failed_at" => be_a(SidekiqVersions::TIME))
    expect(entry.error_backtrace.first).to match(%r{app/jobs/charge_job\.rb.*perform})
    expect(entry.error_backtrace.size).to be <= 5
    # A second, and Sidekiq's jitter of less than ten.
    expect(entry.at.to_f - SidekiqVersions.seconds(entry.item["failed_at"])).to be_between(0.9, 11.1)
  end

  it "gives up a job at its last retry, after its block and the death handlers" do
    jid = push("ChargeJob", "eve", queue: "critical", retry: 0)
    dead = eventually("it is among the dead") { Sidekiq::DeadSet.new.find_job(jid) }
    expect(dead.item).to include("error_class" => "ChargeJob::Declined", "retry_count" => 0)
    expect(notes).to eq(["gave up #{jid}", "died #{jid}"])
  end

  it "runs a job again whose application was killed, and then one whose worker was too, at no cost" do
    failed = Sidekiq::Stats.new.failed
    push("ThumbnailJob", "survivor", 2)
    eventually("it begins") { notes.include?("began survivor") }
    @stack["app"].kill
    @stack.start("app")
    eventually("it begins again", timeout: 60) { notes.count("began survivor") == 2 }
    @stack["app"].kill
    @stack["worker"].kill
    @stack.start("app")
    start_worker
    eventually("it ran", timeout: 60) { notes.include?("made survivor []") }
    expect([Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]).to eq([0, 0])
    expect(Sidekiq::Stats.new.failed).to eq(failed)
  end

  it "runs a job again whose worker alone was killed, and never beside its first run" do
    push("ThumbnailJob", "alone", 14)
    eventually("it begins") { notes.include?("began alone") }
    # Its jobs are somebody else's after 5 s and some; the application knows nothing of it.
    @stack["worker"].kill
    start_worker
    eventually("it ran twice", timeout: 60) { notes.grep(/alone/).size == 4 }
    expect(notes.grep(/alone/)).to eq(["began alone", "made alone []"] * 2)
    expect([Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]).to eq([0, 0])
  end

  it "stops a job that outlasts the drain before another application begins it" do
    noting = { RUBYOPT: "-W0 -r#{File.expand_path("support/classes/long_job.rb", __dir__)}" }
    url = Struct.new(:url).new(@stack.redis_url)
    other = Sidecar.new(url, **noting)
    %w[worker app].each { |name| @stack[name].stop }
    @stack.start("app", **noting)
    other.ready
    start_worker(WORKER_DRAIN_TIMEOUT: "1s")
    push("LongJob", 3)
    eventually("it begins") { notes.include?("began") }
    draining = @stack["worker"]
    draining.signal(:TERM)
    start_worker(WORKER_HANDLER_HTTP_URL: "http://127.0.0.1:#{other.port}", WORKER_HANDLER_HTTP_TOKEN_FILE: nil)
    eventually("it ran to its end", timeout: 30) { notes.include?("made") }
    # One after the other; left alone, the first would have gone on beside the second.
    expect(notes.grep(/began|made|ended/)).to eq(%w[began ended began made ended])
    expect(draining.wait.exitstatus).to eq(0)
    expect([Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]).to eq([0, 0])
  ensure
    draining&.stop
    %w[worker app].each { |name| @stack[name].stop }
    other&.stop
    @stack.start("app")
    start_worker
  end

  it "has the block and the death handlers of a job that is given up without an answer" do
    @stack["worker"].stop
    start_worker(WORKER_HANDLER_HTTP_TIMEOUT: "2s")
    late = push("ChargeJob", "late", 6, queue: "critical", retry: 0)
    forgotten = push("ChargeJob", "never", 6, queue: "critical", retry: false)
    dead = eventually("it is among the dead", timeout: 30) { Sidekiq::DeadSet.new.find_job(late) }
    expect(dead.item).to include("error_class" => "Jobqueue::Timeout", "retry_count" => 0)
    # A job that is never retried has no last retry.
    eventually("the handlers ran") { notes.sort == ["died #{forgotten}", "died #{late}", "gave up #{late}"].sort }
    eventually("the other is gone") { Sidekiq::Workers.new.none? && Sidekiq::DeadSet.new.size == 1 }
  ensure
    @stack["worker"].stop
    start_worker
  end

  it "takes what the worker signs, and nothing else" do
    Dir.mktmpdir do |directory|
      key = "#{directory}/key".tap { |path| File.write(path, "k3y of any bytes\n") }
      %w[worker app].each { |name| @stack[name].stop }
      @stack.start("app", JOBQUEUE_TOKEN_FILE: nil, JOBQUEUE_HMAC_KEY_FILE: key)
      start_worker(WORKER_HANDLER_HTTP_TOKEN_FILE: nil, WORKER_HANDLER_HTTP_HMAC_KEY_FILE: key,
                   WORKER_HANDLER_HTTP_TIMEOUT: "2s")
      push("ThumbnailJob", "signed")
      eventually("it ran", timeout: 30) { notes.include?("made signed []") }
      # The end of a job is told under another path.
      late = push("ChargeJob", "late", 6, queue: "critical", retry: 0)
      eventually("its end is told", timeout: 30) { notes.include?("died #{late}") }
      @stack["worker"].stop
      # Without a secret it is refused, which costs a job that is never retried nothing.
      start_worker(WORKER_HANDLER_HTTP_TOKEN_FILE: nil)
      push("ThumbnailJob", "unsigned", retry: false)
      eventually("it is refused", timeout: 30) { @stack["worker"].output.include?("set worker.handler.http.token_file") }
      expect(notes.grep(/unsigned/)).to eq([])
    ensure
      %w[worker app].each { |name| @stack[name].stop }
      @stack.start("app")
      start_worker
      eventually("it ran after all", timeout: 30) { notes.include?("made unsigned []") }
    end
  end

  it "speaks TLS, and each side asks for the other's certificate" do
    Dir.mktmpdir do |directory|
      files = Certificates.new(directory)
      tls = { cert: "server.crt", key: "server.key", ca: "ca.crt" }.map { |name, file| "#{name}=#{files.path(file)}" }
      %w[worker app].each { |name| @stack[name].stop }
      @stack.start("app", JOBQUEUE_BIND: "ssl://127.0.0.1:#{@stack.port("app")}?#{tls.join("&")}&verify_mode=force_peer")
      start_worker(WORKER_HANDLER_HTTP_URL: "https://127.0.0.1:#{@stack.port("app")}",
                   WORKER_HANDLER_HTTP_CA_FILE: files.path("ca.crt"), WORKER_HANDLER_HTTP_CERT_FILE: files.path("client.crt"),
                   WORKER_HANDLER_HTTP_KEY_FILE: files.path("client.key"))
      push("ThumbnailJob", "sealed")
      eventually("it ran", timeout: 30) { notes.include?("made sealed []") }
      @stack["worker"].stop
      # Without a certificate of its own it is turned away, and that costs the job nothing.
      start_worker(WORKER_HANDLER_HTTP_URL: "https://127.0.0.1:#{@stack.port("app")}",
                   WORKER_HANDLER_HTTP_CA_FILE: files.path("ca.crt"))
      jid = push("ThumbnailJob", "stranger")
      eventually("it is refused", timeout: 30) { @stack["worker"].output.include?("Breaker opened") }
      expect([notes.grep(/stranger/), Sidekiq::RetrySet.new.size]).to eq([[], 0])
    ensure
      %w[worker app].each { |name| @stack[name].stop }
      @stack.start("app")
      start_worker
      eventually("it ran after all", timeout: 30) { notes.include?("made stranger []") } if jid
    end
  end

  it "loses none of a thousand jobs while application, worker and both are killed, and takes no attempt", :long do
    names = Array.new(1000) { |number| "many#{number}" }
    failed = Sidekiq::Stats.new.failed
    # Any attempt would be its last.
    Sidekiq::Client.push_bulk("class" => "ThumbnailJob", "args" => names.map { |name| [name, 0.05] }, "retry" => 0)
    made = -> { notes.grep(/\Amade many/).uniq.size }
    [%w[app], %w[worker], %w[app worker]].each_with_index do |killed, round|
      eventually("#{200 * (round + 1)} jobs are made", timeout: 60) { made.call >= 200 * (round + 1) }
      killed.each { |name| @stack[name].kill }
      killed.each { |name| name == "app" ? @stack.start("app") : start_worker }
    end
    eventually("all are made", timeout: 120) { made.call == 1000 }
    expect([Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]).to eq([0, 0])
    expect(Sidekiq::Stats.new.failed).to eq(failed)
  end

  it "buries a job that kills its application again and again, and no other", :long do
    crash = { RUBYOPT: "-W0 -r#{File.expand_path("support/classes/crash_job.rb", __dir__)}" }
    @stack["app"].stop
    @stack.start("app", **crash)
    jid = push("CrashJob", retry: true)
    innocent = Array.new(10) { |number| "innocent#{number}" }
    innocent.each { |name| push("ThumbnailJob", name, 0.2) }
    dead = eventually("it is among the dead", timeout: 120) do
      # What Kubernetes and Compose do.
      @stack.start("app", **crash) if @stack["app"].ended?
      Sidekiq::DeadSet.new.find_job(jid)
    end
    expect(dead.item["error_class"]).to match(/poison/i)
    expect(notes).to include("died #{jid}")
    eventually("the others ran", timeout: 60) { innocent.all? { |name| notes.include?("made #{name} []") } }
    expect([Sidekiq::DeadSet.new.size, Sidekiq::RetrySet.new.size]).to eq([1, 0])
  end

  it "shares its queues with a Sidekiq process: side by side, cut over, and back", :long do
    ruby = @stack.start_sidekiq
    eventually("both are there", timeout: 40) { Sidekiq::ProcessSet.new.map { |one| one["pid"] }.include?(ruby.pid) }
    names = ->(prefix) { Array.new(150) { |number| "#{prefix}#{number}" } }
    ran_once = lambda do |prefix|
      Sidekiq::Client.push_bulk("class" => "ThumbnailJob", "args" => names[prefix].map { |name| [name] })
      eventually("all of #{prefix} ran", timeout: 60) { names[prefix].all? { |name| notes.include?("made #{name} []") } }
      expect(notes.grep(/\Amade #{prefix}/).tally.values.uniq).to eq([1])
    end
    ran_once["both"]
    ruby.stop
    ran_once["ours"]
    @stack["worker"].signal(:TERM)
    expect(@stack["worker"].wait(timeout: 40).exitstatus).to eq(0)
    ruby = @stack.start_sidekiq
    ran_once["theirs"]
    expect([Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]).to eq([0, 0])
  ensure
    ruby&.stop
    start_worker if @stack["worker"].ended?
  end

  it "shows all of it in Sidekiq's own pages, whose buttons work" do
    # Without a name it fails, and after so many failures the next try is far away.
    push("ThumbnailJob", retry: true, retry_count: 6)
    push("ChargeJob", "eve", queue: "critical", retry: 0)
    push("ThumbnailJob", "waits", queue: "nobody")
    eventually("one job of each kind", timeout: 30) { Sidekiq::RetrySet.new.any? && Sidekiq::DeadSet.new.any? }
    # Not one that was killed: those are listed for a minute.
    process = -> { Sidekiq::ProcessSet.new.find { |one| one["pid"] == @stack["worker"].pid } }
    identity = process.call["identity"]
    Browser.open do |browser|
      push("ThumbnailJob", "runs", 8)
      # Listed every 5 s, with what ran a moment ago until then.
      eventually("it runs", timeout: 30) { SidekiqVersions.running.include?(["runs", 8]) }
      page = ->(path) { browser.text("#{@stack.web_url}/sidekiq/#{path}") }
      expect(page["busy"]).to include(identity, "critical", "ThumbnailJob", "runs")
      expect(page["queues"]).to include("nobody")
      expect(page["queues/nobody"]).to include("ThumbnailJob", "waits")
      expect(page["retries"]).to include("ThumbnailJob", "ArgumentError: wrong number of arguments")
      expect(page["morgue"]).to include("ChargeJob", "the card of eve was declined")
      page["busy"]
      browser.click("Quiet", identity)
      eventually("it is quiet", timeout: 30) { process.call["quiet"] == "true" }
      page["busy"]
      browser.click("Stop", identity)
      # While the browser is there: closed at once, it may not have sent the form.
      expect(@stack["worker"].wait(timeout: 60).exitstatus).to eq(0)
    end
    eventually("it has said goodbye") { process.call.nil? }
    expect(notes).to include("made runs []")
  ensure
    @redis.del("queue:nobody")
    start_worker if @stack["worker"].ended?
  end
end

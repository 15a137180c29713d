# frozen_string_literal: true

require "openssl"
require "support/processes"

# Puma, the example application and signals, as they are in production. Each start of Rails takes seconds: so few.
RSpec.describe "The sidecar's process" do
  before(:context) { @redis = RedisServer.start }
  after(:context) { @redis.stop }
  before { @redis.client.flushall }

  def job(name, *args, **fields)
    { "class" => name, "args" => args, "jid" => "j1", "queue" => "default", "retry" => 2 }.merge(fields.transform_keys(&:to_s))
  end

  def notes
    @redis.client.lrange("example:notes", 0, -1)
  end

  # A thread that waits for the answer; the job has begun when this returns.
  def begin_job(name, seconds)
    thread = Thread.new { @sidecar.post(job("ThumbnailJob", name, seconds, jid: name)) }
    eventually("#{name} begins") { notes.include?("began #{name}") }
    thread
  end

  def refused?(name)
    @sidecar.post(job("ThumbnailJob", name)).code == "503"
  rescue SystemCallError, EOFError
    true
  end

  context "when it runs" do
    before(:context) do
      fragile = File.expand_path("support/classes/fragile_job.rb", __dir__)
      @sidecar = Sidecar.start(@redis, JOBQUEUE_CONCURRENCY: "2", RUBYOPT: "-W0 -r#{fragile}")
    end
    after(:context) { @sidecar.stop }

    it "runs the application's jobs with its middleware and handlers, and keeps arguments out of the log" do
      expect(@sidecar.post(job("ThumbnailJob", "94711.png", 0, { "w" => 10**30 })).body).to include('"status":"success"')
      expect(notes).to eq(["began 94711.png", "made 94711.png [{\"w\":#{10**30}}]", "ran j1 in Rails' executor"])
      report = { "job_class" => "ReportJob", "job_id" => "a", "queue_name" => "default",
                 "arguments" => ["94712", { "at" => { "_aj_serialized" => "ActiveJob::Serializers::TimeSerializer",
                                                      "value" => "2026-01-02T03:04:05Z" }, "_aj_ruby2_keywords" => ["at"] }] }
      wrapper = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
      expect(@sidecar.post(job(wrapper, report, wrapped: "ReportJob")).body).to include("success")
      expect(notes).to include("reported 94712 2026-01-02T03:04:05Z j1")
      expect(@sidecar.post(job("ChargeJob", "94713", retry_count: 1)).body).to include('"kill":true', "ChargeJob::Declined")
      expect(notes.last(2)).to eq(["gave up j1", "died j1"])
      expect(@sidecar.output).to include("Performing ReportJob", "Job raised ChargeJob::Declined")
      # The order changed with Sidekiq 8.
      expect(@sidecar.output).to match(/class=ThumbnailJob jid=j1|jid=j1 class=ThumbnailJob/)
      expect(@sidecar.output).not_to match(/9471[123]/)
    end

    it "keeps out of the log what an ActiveJob failed of, which quotes its arguments" do
      report = { "job_class" => "ReportJob", "job_id" => "a", "queue_name" => "default",
                 "arguments" => ["94714", { "at" => "94715", "_aj_ruby2_keywords" => ["at"] }] }
      answer = @sidecar.post(job("ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", report, wrapped: "ReportJob"))
      expect(answer.body).to include('"error_class":"NoMethodError"')
      # What to look for, with the place where it was raised.
      expect(@sidecar.output).to match(/Error performing ReportJob .*NoMethodError.*report_job\.rb/m)
      expect(@sidecar.output).not_to match(/9471[45]/)
    end

    it "keeps it out of the log too when ActiveJob itself retries the job, gives up or discards it" do
      wrapper = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
      failed = [["Late", {}], ["Late", { "[FragileJob::Late]" => 1 }], ["Gone", {}]]
      answers = failed.map do |exception, counts|
        fragile = { "job_class" => "FragileJob", "job_id" => "a", "queue_name" => "default", "executions" => counts.size,
                    "exception_executions" => counts, "arguments" => [exception, "94716"] }
        JSON.parse(@sidecar.post(job(wrapper, fragile, wrapped: "FragileJob")).body)["status"]
      end
      expect(answers).to eq(%w[success failure success])
      expect(@sidecar.output).to match(/Retrying FragileJob \(Job ID: a\) in \d seconds: FragileJob::Late$/)
      expect(@sidecar.output).to match(/Stopped retrying FragileJob \(Job ID: a\) after 2 attempts: FragileJob::Late$/)
      expect(@sidecar.output).to match(/Discarded FragileJob \(Job ID: a\): FragileJob::Gone$/)
      expect(@sidecar.output).not_to include("94716")
    end

    it "refuses what is more than its slots, and stays in good health" do
      running = [begin_job("one", 1.5), begin_job("two", 1.5)]
      answers = Array.new(4) { @sidecar.post(job("ThumbnailJob", "three")) }
      expect(answers.map { |answer| [answer.code, answer["retry-after"]] }).to eq([%w[503 1]] * 4)
      expect(@sidecar.health).to eq([200, { "status" => "ok", "rails_loaded" => true, "concurrency" => 2, "busy" => 2 }])
      expect(running.map { |thread| thread.value.code }).to eq(%w[200 200])
      expect(@sidecar.post(job("ThumbnailJob", "four")).code).to eq("200")
      expect(notes.grep(/three/)).to eq([])
    end
  end

  it "lets jobs end when it is told to stop, takes no other, and gives back what does not end in time" do
    @sidecar = Sidecar.start(@redis, JOBQUEUE_STOP_TIMEOUT: "3")
    short = begin_job("short", 1)
    endless = begin_job("endless", 600)
    @sidecar.signal(:TERM)
    eventually("it takes no more") { refused?("late") }
    expect(refused?("too late")).to be(true)
    expect(short.value.body).to include("success")
    expect(endless.value.then { |answer| [answer.code, JSON.parse(answer.body)["interrupted"]] }).to eq(["200", true])
    # By the signal, as Puma and every well-behaved process says of itself.
    expect(@sidecar.wait.termsig).to eq(15)
    expect(notes).to include("made short []", "stopped")
    expect(notes.grep(/too late|made endless/)).to eq([])
    expect(@sidecar.output).to include("Interrupted 1 jobs")
  ensure
    @sidecar&.stop
  end

  it "ends also when Puma does not" do
    hanging = File.expand_path("support/classes/hanging_puma.rb", __dir__)
    @sidecar = Sidecar.start(@redis, RUBYOPT: "-W0 -r#{hanging}")
    @sidecar.signal(:TERM)
    expect(@sidecar.wait(timeout: 30).termsig).to eq(15)
    expect(@sidecar.output).to include("Ended without Puma")
  ensure
    @sidecar&.kill
  end

  it "serves a unix socket to who signs, and ends in good order above its memory limit" do
    directory = Dir.mktmpdir
    File.write("#{directory}/key", "k3y\n")
    socket = "#{directory}/jobs.sock"
    @sidecar = Sidecar.new(@redis, JOBQUEUE_BIND: "unix://#{socket}", JOBQUEUE_HMAC_KEY_FILE: "#{directory}/key",
                                   JOBQUEUE_MEMORY_LIMIT_MB: "1")
    eventually("the socket is there", timeout: 40) { File.socket?(socket) }
    body = JSON.generate(job("ThumbnailJob", "socket"))
    now = Time.now.to_i
    answers = %w[other k3y].map do |key|
      signature = OpenSSL::HMAC.hexdigest("SHA256", key, "#{now}./jobs/execute.#{body}")
      UNIXSocket.open(socket) do |io|
        io.write("POST /jobs/execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: #{body.bytesize}\r\n" \
                 "Content-Type: application/json\r\nX-Jobqueue-Timestamp: #{now}\r\nX-Jobqueue-Signature: sha256=#{signature}\r\n\r\n#{body}")
        io.gets[/\d{3}/]
      end
    end
    expect(answers).to eq(%w[401 200])
    expect(@sidecar.wait.termsig).to eq(15)
    expect(@sidecar.output).to include("more than JOBQUEUE_MEMORY_LIMIT_MB")
  ensure
    @sidecar&.stop
    FileUtils.rm_rf(directory)
  end

  it "writes every line of its log as JSON where that is asked for: Sidekiq's, Rails' and Puma's" do
    @sidecar = Sidecar.start(@redis, JOBQUEUE_LOG_FORMAT: "json")
    report = { "job_class" => "ReportJob", "job_id" => "a", "queue_name" => "default", "arguments" => ["sales"] }
    wrapper = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
    @sidecar.post(job(wrapper, report, wrapped: "ReportJob"), headers: { "X-Request-Id" => "r-1" })
    @sidecar.signal(:TERM)
    @sidecar.wait
    lines = @sidecar.output.lines.map { |line| JSON.parse(line) }
    expect(lines).to all(include("ts", "pid", "lvl", "msg"))
    expect(lines.map { |line| line["msg"] }).to include(/\APuma starting/, /Ready for 5 jobs/, /Performing ReportJob/, "start")
    ran = lines.find { |line| line["msg"] == "start" }
    expect(ran["ctx"]).to include("class" => "ReportJob", "jid" => "j1", "request_id" => "r-1")
  ensure
    @sidecar&.stop
  end

  it "is asked for its health by anybody and takes jobs over loopback alone, where that is meant" do
    port = RedisServer.free_port
    @sidecar = Sidecar.start(@redis, port: port, JOBQUEUE_BIND: "tcp://0.0.0.0:#{port}", JOBQUEUE_WITHOUT_SECRET: "loopback")
    expect(@sidecar.post(job("ThumbnailJob", "near")).code).to eq("200")
    own = Socket.ip_address_list.find { |address| address.ipv4? && !address.ipv4_loopback? }
    skip "this machine has no address but loopback" if own.nil?
    expect(Net::HTTP.get_response(URI("http://#{own.ip_address}:#{port}/health")).code).to eq("200")
    json = { "Content-Type" => "application/json" }
    far = URI("http://#{own.ip_address}:#{port}/jobs/execute")
    expect(Net::HTTP.post(far, JSON.generate(job("ThumbnailJob", "far")), json).code).to eq("401")
    # One that is gone when Puma asks who it was.
    body = JSON.generate(job("ThumbnailJob", "gone"))
    20.times do
      TCPSocket.open(own.ip_address, port) do |io|
        io.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
        io.write("POST /jobs/execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
                 "Content-Length: #{body.bytesize}\r\n\r\n#{body}")
      end
    end
    expect(@sidecar.post(job("ThumbnailJob", "after")).code).to eq("200")
    # At its end it has dealt with all that it was sent.
    @sidecar.stop
    expect(notes.grep(/far|gone/)).to eq([])
  ensure
    @sidecar&.stop
  end

  it "says what is wrong with its settings and does not start" do
    @sidecar = Sidecar.new(@redis, JOBQUEUE_CONCURRENCY: "0")
    expect(@sidecar.wait.exitstatus).to eq(78)
    expect(@sidecar.output).to include('jobqueue-sidecar: JOBQUEUE_CONCURRENCY: "0": must be an integer from 1 to 1000')
  ensure
    @sidecar&.stop
  end
end

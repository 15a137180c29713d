# frozen_string_literal: true

require "securerandom"
require "tempfile"

RSpec.describe Jobqueue::Sidecar::App do
  let(:environment) { { "JOBQUEUE_CONCURRENCY" => "2" } }
  let(:settings) { Jobqueue::Sidecar::Settings.new(environment) }
  let(:app) { described_class.new(settings) }
  let(:web) { Rack::MockRequest.new(app) }

  def job(name, *args, **fields)
    { "class" => name, "args" => args, "jid" => "j1", "queue" => "default", "retry" => true,
      "created_at" => 1_700_000_000.5 }.merge(fields.transform_keys(&:to_s))
  end

  def post(body, path: "/jobs/execute", **env)
    body = JSON.generate(body) unless body.is_a?(String)
    web.post(path, from("127.0.0.1", body).merge(env.transform_keys(&:to_s)))
  end

  # What the worker sends, from this address.
  def from(address, body)
    { :input => body, "CONTENT_TYPE" => "application/json", "REMOTE_ADDR" => address }
  end

  def verdict(*args, **fields)
    answer = post(job(*args, **fields))
    expect(answer.status).to eq(200), answer.body
    JSON.parse(answer.body)
  end

  def happened(kind)
    Events.to_a.select { |event| event.first == kind }
  end

  describe "a job that succeeds" do
    it "runs with its arguments inside the server middleware" do
      answer = verdict("Echo", 1, "two", { "three" => [3.5, nil] })
      expect(answer).to match("status" => "success", "result" => "", "execution_time" => be_a(Float))
      expect(Events.to_a).to eq([[:middleware, "Echo", "j1", "default"], [:performed, [1, "two", { "three" => [3.5, nil] }]]])
    end

    it "tells its middleware which queue it was fetched from, as far as somebody has said it" do
      post(job("Echo"), HTTP_X_JOB_QUEUE: "moved")
      post(job("Echo"), HTTP_X_JOB_QUEUE: "a\nb")
      expect(happened(:middleware).map(&:last)).to eq(%w[moved default])
    end

    it "gets bignums, floats, nesting and any text as they were sent" do
      args = [12_345_678_901_234_567_890_123, 1e-300, 0.1, { "ü" => [[[]], {}, nil, true] }, "😀\u0000\n", "a" * (1 << 20)]
      verdict("Echo", *args)
      expect(happened(:performed)).to eq([[:performed, args]])
    end

    it "runs inside the executor of Rails, once" do
      runs = []
      Rails.application.executor.to_run { runs << :run }
      Rails.application.executor.to_complete { runs << :complete }
      verdict("Echo")
      expect(runs).to eq(%i[run complete])
    end

    it "runs without arguments when it has none" do
      expect(JSON.parse(post(job("Echo").except("args")).body)["status"]).to eq("success")
      expect(happened(:performed)).to eq([[:performed, []]])
    end

    it "has a pool of connections as large as its concurrency, and leaves the thread as it was" do
      skip "one pool for all" unless Jobqueue::Sidecar::SidekiqRuntime::CONFIG_OBJECT
      verdict("NotesThePool")
      expect(happened(:pool)).to eq([[:pool, true]])
      expect(Thread.current[:sidekiq_capsule]).to be_nil
    end

    it "may be an ActiveJob with its own arguments" do
      at = Time.utc(2026, 1, 2, 3, 4, 5)
      wrapped = job("ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", Report.new("sales", at: at).serialize,
                    wrapped: "Report")
      expect(JSON.parse(post(wrapped).body)["status"]).to eq("success")
      expect(happened(:reported).first[1..3]).to eq(["sales", at, "j1"])
    end
  end

  describe "a job that fails" do
    it "is answered with class and message and leaves the delay to the worker" do
      expect(verdict("Fails")).to include("status" => "failure", "error_class" => "Boom",
                                          "error_message" => "the secret is 4711", "result" => "the secret is 4711")
      expect(verdict("Fails").keys & %w[retry_in kill discard unknown_class backtrace]).to eq([])
      expect(happened(:reported_error)).to include([:reported_error, "Boom", "Job raised exception"])
    end

    it "is retried when its class says so, and asked with the number of the failure" do
      expect(verdict("FailsAndSaysWhen")["retry_in"]).to eq(90)
      expect(verdict("FailsAndSaysWhen", retry_count: 3)["retry_in"]).to eq(90)
      expect(happened(:retry_in)).to eq([[:retry_in, 0, "Boom"], [:retry_in, 4, "Boom"]])
    end

    it "is retried by default when its class fails to say" do
      expect(verdict("FailsAndAsksWrongly").keys).not_to include("retry_in", "kill", "discard")
    end

    it "dies when its class says so, with its block and the death handlers" do
      expect(verdict("FailsAndIsKilled")).to include("status" => "failure", "kill" => true)
      expect(Events.to_a).to include([:exhausted, 0, "Boom"], [:died, "j1", "Boom"])
    end

    it "is discarded when its class says so" do
      expect(verdict("FailsAndIsDiscarded")).to include("status" => "failure", "discard" => true)
      expect(happened(:exhausted)).to eq([])
    end

    it "dies at its last retry, even when one of the handlers fails" do
      expect(verdict("Fails", retry: 2, retry_count: 0)).not_to include("kill")
      expect(Events.to_a.map(&:first)).not_to include(:exhausted, :died)
      expect(verdict("Fails", retry: 2, retry_count: 1)).to include("kill" => true)
      expect(Events.to_a).to include([:exhausted, 2, "Boom"], [:died, "j1", "Boom"],
                                     [:reported_error, "RuntimeError", "Error calling death handler"])
    end

    it "is discarded at its end when it is not to be kept among the dead" do
      expect(verdict("Fails", retry: 0, dead: false)).to include("discard" => true)
      expect(verdict("FailsForGood", retry: 0)).to include("discard" => true)
      expect(happened(:died).size).to eq(2)
    end

    it "without retries is gone after the death handlers, and its block is not asked" do
      expect(verdict("Fails", retry: false)).to include("discard" => true)
      expect(JSON.parse(post(job("Once").except("retry")).body)).to include("discard" => true)
      expect(happened(:exhausted)).to eq([])
      expect(happened(:died).size).to eq(2)
    end

    it "believes the worker when it says whether the attempt was the last" do
      last = post(job("Fails"), "HTTP_X_JOB_LAST_ATTEMPT" => "true")
      expect(JSON.parse(last.body)).to include("kill" => true)
      not_last = post(job("Fails", retry: 0), "HTTP_X_JOB_LAST_ATTEMPT" => "false")
      expect(JSON.parse(not_last.body)).not_to include("kill")
      class_knows = post(job("FailsOnce").except("retry"), "HTTP_X_JOB_LAST_ATTEMPT" => "false")
      expect(JSON.parse(class_knows.body)).to include("kill" => true)
    end

    it "is given up as its class says when it does not say it itself, however often the worker would retry it" do
      fails = ->(count) { JSON.parse(post(job("FailsVeryOften", retry_count: count).except("retry")).body) }
      expect(fails[98]).to include("status" => "failure").and(satisfy { |said| !said["kill"] })
      expect(happened(:died)).to eq([])
      expect(fails[99]).to include("kill" => true)
      expect(happened(:died).size).to eq(1)
    end

    it "looks at the clock itself when the time for its retries may have ended while it ran" do
      overdue = { retry_for: 60, retry_count: 0, failed_at: Time.now.to_f - 61 }
      known = ->(fields) { JSON.parse(post(job("Fails", **fields), "HTTP_X_JOB_LAST_ATTEMPT" => "false").body) }
      expect(known[overdue]).to include("kill" => true)
      expect(happened(:died).size).to eq(1)
      expect(known[overdue.merge(failed_at: Time.now.to_f - 30)]).not_to include("kill")
    end

    it "gives a block as many arguments as it takes" do
      expect(verdict("FailsAndSaysWhenStrictly")["retry_in"]).to eq(70)
    end

    it "tells death handlers when a job was discarded, as Sidekiq 8 does" do
      seen = []
      noting = ->(job, _exception) { seen << job["discarded_at"] }
      SidekiqVersions.config.death_handlers << noting
      verdict("Fails", retry: 0, dead: false)
      verdict("Fails", retry: 0)
      since = Jobqueue::Sidecar::SidekiqRuntime.since?("8.0.8")
      expect(seen).to match([since ? be_within(60_000).of(Time.now.to_i * 1000) : nil, nil])
    ensure
      SidekiqVersions.config.death_handlers.delete(noting)
    end

    it "sends as many lines of backtrace as the job asks for" do
      expect(verdict("Fails", backtrace: 2)["backtrace"].size).to eq(2)
      expect(verdict("Fails", backtrace: true)["backtrace"].first).to match(/jobs\.rb.*perform/)
      expect(verdict("Fails", backtrace: false)).not_to include("backtrace")
    end

    it "asks an ActiveJob's own class and not its wrapper" do
      wrapped = job("ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", Report.new("fails").serialize, wrapped: "Report")
      expect(JSON.parse(post(wrapped).body)).to include("error_class" => "Boom", "retry_in" => 33)
      expect(JSON.parse(post(wrapped.merge("retry" => 0)).body)).to include("kill" => true)
      expect(happened(:exhausted)).to eq([[:exhausted, "Report"]])
    end

    it "fails when the code around it does, and says so" do
      reloader = Sidekiq::Rails::Reloader.instance_method(:call)
      Sidekiq::Rails::Reloader.define_method(:call) { raise SyntaxError, "app/models/user.rb:1: unexpected end" }
      expect(verdict("Echo")).to include("status" => "failure", "error_class" => "SyntaxError")
      expect(happened(:reported_error)).to eq([[:reported_error, "SyntaxError", "Job raised exception"]])
    ensure
      Sidekiq::Rails::Reloader.define_method(:call, reloader)
    end

    it "may have called exit: the process goes on" do
      expect(verdict("Exits")).to include("error_class" => "SystemExit")
    end

    it "is not run again when middleware has dealt with it" do
      expect(verdict("Echo", reschedule: true)).to include("status" => "failure", "discard" => true)
      expect(happened(:performed)).to eq([])
    end

    it "fails as with Sidekiq when its class is unknown" do
      expect(verdict("No::Such")).to include("error_class" => "NameError", "error_message" => /No/, "unknown_class" => true)
      expect(verdict("No::Such", retry: 0)).to include("kill" => true)
      expect(verdict("Echo::Fails")).to include("error_class" => "NameError", "unknown_class" => true)
      expect(verdict("Misspells")).to include("error_class" => "NameError")
      expect(verdict("Misspells")).not_to include("unknown_class")
    end
  end

  describe "a job that the worker gives up" do
    def died(*args, **fields)
      answer = post(job(*args, error_class: "Jobqueue::Timeout", error_message: "no answer within 60s", **fields),
                    path: "/jobs/death")
      expect(answer.status).to eq(200), answer.body
      JSON.parse(answer.body)
    end

    it "has its block and the death handlers as after its last failure, and is not performed" do
      seen = []
      noting = ->(job, exception) { seen << [job["retry_count"], job["error_message"], exception.message] }
      SidekiqVersions.config.death_handlers << noting
      expect(died("Echo", 1, retry_count: 4)).to include("status" => "failure", "kill" => true)
      expect(Events.to_a).to include([:exhausted, 5, "Jobqueue::Timeout"], [:died, "j1", "Jobqueue::Timeout"])
      expect(happened(:performed)).to eq([])
      expect(seen).to eq([[5, "no answer within 60s", "no answer within 60s"]])
    ensure
      SidekiqVersions.config.death_handlers.delete(noting)
    end

    it "says when it is not to be kept" do
      expect(died("FailsForGood")).to include("discard" => true)
      expect(died("Echo", dead: false)).to include("discard" => true)
    end

    it "has the death handlers alone when it is never retried, and when its class is gone" do
      expect(died("Echo", retry: false)).to include("discard" => true)
      died("No::Such", error_class: "Kernel")
      expect(happened(:exhausted)).to eq([])
      expect(happened(:died)).to eq([[:died, "j1", "Jobqueue::Timeout"], [:died, "j1", "Jobqueue::JobDied"]])
    end

    it "has them while every slot is taken by itself and another, and not again when it ends" do
      threads = %w[j1 j2].map { |jid| Thread.new { post(job("WaitsAndFails", jid: jid), HTTP_X_JOB_LAST_ATTEMPT: "true") } }
      2.times { Waits::STARTED.pop }
      expect(died("WaitsAndFails")).to include("kill" => true)
      2.times { Waits::GO << true }
      expect(threads.map { |thread| JSON.parse(thread.value.body)["kill"] }).to eq([nil, true])
      expect(happened(:died)).to eq([[:died, "j1", "Jobqueue::Timeout"], [:died, "j2", "Boom"]])
    end
  end

  describe "back-pressure and stop" do
    def running(name = "Waits", jid: SecureRandom.hex, **env)
      thread = Thread.new { post(job(name, jid: jid), **env) }
      Waits::STARTED.pop
      thread
    end

    it "answers 503 with Retry-After when every slot is taken, and has run nothing" do
      threads = [running, running]
      answer = post(job("Echo"))
      expect([answer.status, answer.headers["retry-after"]]).to eq([503, "1"])
      expect(JSON.parse(web.get("/health").body)).to include("busy" => 2, "concurrency" => 2)
      expect(happened(:performed)).to eq([])
      2.times { Waits::GO << true }
      expect(threads.map { |thread| thread.value.status }).to eq([200, 200])
      expect(post(job("Echo")).status).to eq(200)
    end

    it "answers 503 once it stops, and tells so at /health" do
      app.gate.close
      answer = post(job("Echo"))
      expect([answer.status, answer.headers["retry-after"]]).to eq([503, nil])
      health = web.get("/health")
      expect([health.status, JSON.parse(health.body)["status"]]).to eq([503, "stopping"])
    end

    it "gives back a job that was interrupted, at no cost, whatever the job made of it" do
      %w[Waits WaitsAndWraps].each do |name|
        app = described_class.new(settings)
        request = Rack::MockRequest.new(app)
        thread = Thread.new do
          request.post("/jobs/execute", from("::1", JSON.generate(job(name, retry: 0))))
        end
        Waits::STARTED.pop
        app.gate.stop(0)
        answer = thread.value
        expect([answer.status, JSON.parse(answer.body)["interrupted"]]).to eq([200, true])
      end
      expect(Events.to_a.map(&:first)).not_to include(:died, :exhausted, :reported_error)
    end

    it "stops the jobs that the worker gives back, and says when they have ended" do
      threads = %w[a b].map { |jid| running(jid: jid) }
      order = ->(*jids) { JSON.parse(post({ jids: jids }, path: "/jobs/interrupt").body) }
      expect(order["a", "gone"]).to include("status" => "success", "running" => be_between(0, 1))
      expect(JSON.parse(threads.first.value.body)).to include("interrupted" => true)
      expect(order["a"]).to include("running" => 0)
      again = post(job("Echo", jid: "a"))
      expect([again.status, again.headers["retry-after"]]).to eq([503, "1"])
      Waits::GO << true
      expect(JSON.parse(threads.last.value.body)).to include("status" => "success")
      expect(happened(:interrupted).size).to eq(1)
    end

    it "knows a job by the text of its name, and one without a name by none" do
      [7, ""].each do |jid|
        thread = running(jid: jid)
        ordered = JSON.parse(post({ jids: [jid.to_s] }, path: "/jobs/interrupt").body)
        expect(ordered["running"]).to eq(jid == 7 ? 1 : 0)
        # Of two without a name neither keeps the other waiting.
        expect(post(job("Echo", jid: jid)).status).to eq(jid == 7 ? 503 : 200)
        Waits::GO << true if jid == ""
        thread.join
      end
    end

    it "takes an order to stop from nobody else, and only as it is meant" do
      post = ->(body, address) { web.post("/jobs/interrupt", from(address, body)).status }
      expect([post['{"jids":["a"]}', "10.0.0.7"], post['{"jids":["a"]}', "::1"]]).to eq([401, 200])
      expect(['{"jids":"a"}', '{"jids":[1]}', "[]", "{"].map { |body| post[body, "::1"] }).to eq([400] * 4)
      expect(web.get("/jobs/interrupt").status).to eq(405)
    end

    it "never runs a job twice at once: it has to wait for its earlier run" do
      thread = running(jid: "j1", HTTP_X_JOB_TIMEOUT: "60.000")
      answer = post(job("Echo"))
      expect([answer.status, answer.headers["retry-after"]]).to eq([503, "1"])
      expect(answer.body).to include("an earlier run of this job")
      expect(post(job("Echo", jid: "j2")).status).to eq(200)
      Waits::GO << true
      thread.join
      expect(post(job("Echo")).status).to eq(200)
    end

    it "fails a job whose earlier run hangs, so that it takes one slot and no more" do
      thread = running(jid: "j1", HTTP_X_JOB_TIMEOUT: "0.05")
      eventually("its time is over") { post(job("Waits")).status == 200 }
      retried = Array.new(3) { |count| verdict("Waits", retry_count: count) }
      expect(retried.map { |said| [said["status"], said["error_class"]] }.uniq).to eq([%w[failure Jobqueue::StillRunning]])
      expect(JSON.parse(web.get("/health").body)).to include("status" => "ok", "busy" => 1)
      # At its end it dies of that, as it would of a timeout.
      last = JSON.parse(post(job("Waits", retry_count: 4), HTTP_X_JOB_LAST_ATTEMPT: "true").body)
      expect(last).to include("kill" => true)
      expect(Events.to_a).to include([:exhausted, 5, "Jobqueue::StillRunning"], [:died, "j1", "Jobqueue::StillRunning"])
      Waits::GO << true
      thread.join
    end

    it "is in bad health when every slot has a job that nobody waits for" do
      threads = Array.new(2) { running(HTTP_X_JOB_TIMEOUT: "0.05") }
      health = eventually("their time is over") { web.get("/health").then { |answer| answer if answer.status == 503 } }
      expect(JSON.parse(health.body)["status"]).to eq("stuck")
      2.times { Waits::GO << true }
      threads.each(&:join)
      expect(web.get("/health").status).to eq(200)
    end

    it "has threads left for /health when death handlers are slow" do
      held = Queue.new
      slow = ->(*) { held.pop }
      SidekiqVersions.config.death_handlers << slow
      deaths = Array.new(3) { |number| Thread.new { post(job("Echo", jid: "d#{number}"), path: "/jobs/death") } }
      eventually("two slots and one beside them") { app.gate.busy == 3 }
      answer = post(job("Echo", jid: "d4"), path: "/jobs/death")
      expect([answer.status, answer.headers["retry-after"]]).to eq([503, "1"])
      expect(settings.threads).to be > app.gate.busy + 1
      3.times { held << true }
      expect(deaths.map { |thread| thread.value.status }).to eq([200] * 3)
    ensure
      SidekiqVersions.config.death_handlers.delete(slow)
    end

    it "waits for its jobs above the memory limit, in good health, and then ends" do
      stopped = Queue.new
      environment["JOBQUEUE_MEMORY_LIMIT_MB"] = "10"
      app = described_class.new(Jobqueue::Sidecar::Settings.new(environment), memory: -> { 11 << 20 },
                                                                              stop: -> { stopped << true })
      request = Rack::MockRequest.new(app)
      start = ->(name) { request.post("/jobs/execute", from("::1", JSON.generate(job(name)))) }
      thread = Thread.new { start["Waits"] }
      Waits::STARTED.pop
      # Nobody ends a job: it is who asks for the health that finds out.
      health = Array.new(2) { request.get("/health").then { |answer| [answer.status, JSON.parse(answer.body)["status"]] } }
      expect(health).to eq([[200, "draining"]] * 2)
      expect([start["Echo"].status, stopped.size]).to eq([503, 0])
      Waits::GO << true
      expect(thread.value.body).to include("success")
      expect(stopped.pop).to be(true)
      expect(Events.to_a.map(&:first)).not_to include(:interrupted)
    end

    it "takes no more jobs above its memory limit and ends the process once" do
      stopped = 0
      resident = 10 << 20
      environment["JOBQUEUE_MEMORY_LIMIT_MB"] = "10"
      app = described_class.new(Jobqueue::Sidecar::Settings.new(environment), memory: -> { resident },
                                                                              stop: -> { stopped += 1 })
      request = Rack::MockRequest.new(app)
      run = -> { request.post("/jobs/execute", from("::1", JSON.generate(job("Echo")))).status }
      expect([run.call, stopped]).to eq([200, 0])
      resident += 1
      expect(run.call).to eq(200)
      eventually("it ends") { stopped == 1 }
      expect([run.call, stopped]).to eq([503, 1])
    end

    it "knows how much memory it has" do
      expect(Jobqueue::Sidecar::Memory.resident).to be > 10 << 20
      expect(Jobqueue::Sidecar::Memory.resident("/nowhere")).to be_nil
    end
  end

  describe "what is no job" do
    it "is refused with a reason that does not quote it" do
      { "4711" => "a job is a JSON object", "[4711" => "not JSON", "{\"class\":\"Echo\",\"args\":{}}" => "args: must be an array",
        "#{"[" * 101}#{"]" * 101}" => "nested too deeply" }.each do |body, text|
        answer = post(body)
        expect([answer.status, JSON.parse(answer.body)["status"]]).to eq([400, "error"]), body
        expect(answer.body).to include(text)
        expect(answer.body).not_to include("4711")
      end
    end

    it "is refused when it is too large" do
      environment["JOBQUEUE_MAX_BODY_BYTES"] = "100"
      expect(post(job("Echo", "x" * 100)).status).to eq(413)
    end

    it "is refused elsewhere and by other methods" do
      expect(web.get("/jobs/execute").then { |answer| [answer.status, answer.headers["allow"]] }).to eq([405, "POST"])
      expect(web.post("/health").status).to eq(405)
      expect(web.get("/").status).to eq(404)
    end
  end

  describe "a stranger" do
    it "learns nothing and runs nothing" do
      answer = web.post("/jobs/execute", from("10.0.0.1", "{"))
      expect([answer.status, JSON.parse(answer.body)["result"]]).to eq([401, "unauthorized"])
      expect(@log.string).to include("Refused a request: without JOBQUEUE_TOKEN_FILE")
      expect(web.get("/health", "REMOTE_ADDR" => "10.0.0.1").status).to eq(200)
    end

    it "is a page in a browser too, at whatever address, and with whatever secret" do
      page = ->(**env) { %w[execute death interrupt].map { |path| post(job("Echo"), path: "/jobs/#{path}", **env).status } }
      ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", nil].each do |type|
        expect(page.call(CONTENT_TYPE: type)).to eq([415] * 3), type
      end
      ["https://example.com", "null", "http://127.0.0.1:3000"].each do |origin|
        expect(page.call(HTTP_ORIGIN: origin)).to eq([403] * 3), origin
      end
      expect(happened(:performed) + happened(:died)).to eq([])
      expect(post(job("Echo"), CONTENT_TYPE: "Application/JSON; charset=utf-8").status).to eq(200)
    end

    it "is known by the token" do
      Tempfile.create("token") do |file|
        file.write("t0ps3cret")
        file.flush
        environment["JOBQUEUE_TOKEN_FILE"] = file.path
        expect(post(job("Echo")).status).to eq(401)
        expect(post(job("Echo"), "HTTP_AUTHORIZATION" => "Bearer wr0ng").status).to eq(401)
        expect(post(job("Echo"), "HTTP_AUTHORIZATION" => "Bearer t0ps3cret").status).to eq(200)
        expect(@log.string).not_to match(/t0ps3cret|wr0ng/)
      end
    end
  end

  describe "the log" do
    it "has class, jid and request id of a job, and never its arguments or its error message" do
      post(job("Fails", "4712"), "HTTP_X_REQUEST_ID" => "r-1",
                                 "HTTP_TRACEPARENT" => "00-#{"ab" * 16}-#{"cd" * 8}-01")
      post(job("Echo", "4712"))
      words = @log.string.lines.first.split
      expect(words).to include("class=Fails", "jid=j1", "request_id=r-1", /\Atrace_id=(ab){16}/, "start")
      expect(@log.string).to include("Job raised Boom", "fail", "done")
      expect(@log.string).not_to match(/4711|4712/)
    end

    it "takes no line break from a header" do
      post(job("Echo"), "HTTP_X_REQUEST_ID" => "a\nb")
      expect(@log.string).not_to include("request_id")
    end

    it "has no arguments of ActiveJobs" do
      expect(ActiveJob::Base.log_arguments).to be(false)
    end
  end

  it "says that Rails is loaded" do
    expect(JSON.parse(web.get("/health").body)).to eq("status" => "ok", "rails_loaded" => true, "concurrency" => 2, "busy" => 0)
  end
end

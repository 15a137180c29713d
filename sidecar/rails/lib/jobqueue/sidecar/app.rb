# frozen_string_literal: true

require "json"
require "rack"
require "jobqueue/sidecar/authentication"
require "jobqueue/sidecar/execution"
require "jobqueue/sidecar/gate"
require "jobqueue/sidecar/job_died"
require "jobqueue/sidecar/memory"
require "jobqueue/sidecar/runs"
require "jobqueue/sidecar/sidekiq_runtime"
require "jobqueue/sidecar/verdict"
require "jobqueue/sidecar/watchdog"

module Jobqueue
  module Sidecar
    # The Rack application: POST /jobs/execute, POST /jobs/death, POST /jobs/interrupt, GET /health. README.md has the contract.
    class App
      # Seconds until a slot may be free: the least that the header can say.
      RETRY_SOON = "1"
      # A browser posts this only to who has agreed to it.
      JSON_TYPE = %r{\A\s*application/json\s*(?:;|\z)}i.freeze
      # Header values go into log lines.
      PRINTABLE = /\A[\x21-\x7e]{1,128}\z/.freeze

      attr_reader :gate, :watchdog

      # `stop` ends this process gracefully; it is called when the memory limit is passed, and when no slot does any work.
      def initialize(settings, sidekiq: SidekiqRuntime.new, memory: Memory.method(:resident),
                     stop: -> { Process.kill(:TERM, Process.pid) })
        @settings = settings
        @sidekiq = sidekiq
        @authentication = Authentication.new(settings)
        @gate = Gate.new(settings.concurrency, interrupt: sidekiq.shutdown)
        @watchdog = Watchdog.new(@gate, sidekiq: sidekiq, patience: settings.stuck_timeout, stop: stop)
        @runs = Runs.new
        @memory = memory
        @stop = stop
        # Why it takes no more jobs though nobody told it to stop.
        @draining = false
      end

      def call(env)
        case env["PATH_INFO"]
        when "/health" then only("GET", env) { health }
        when "/jobs/execute" then only("POST", env) { posted(env) { |job, json| execute(job, json, env) } }
        when "/jobs/death" then only("POST", env) { posted(env) { |job, json| die(job, json, env) } }
        when "/jobs/interrupt" then only("POST", env) { authentic(env) { |order, _| interrupt(order) } }
        else answer(404, { status: "error", result: "there is nothing here" })
        end
      end

      private

      def only(method, env)
        allowed = method == "GET" ? %w[GET HEAD] : [method]
        return yield if allowed.include?(env["REQUEST_METHOD"])

        answer(405, { status: "error", result: "only #{method}" }, "allow" => allowed.join(", "))
      end

      # Whoever asks starts this process again when the answer is not 200. So it is 200 while it waits for its last jobs.
      def health
        watch_memory
        status, word = if gate.stuck? then [503, "stuck"]
                       elsif gate.open? then [200, "ok"]
                       else @draining ? [200, "draining"] : [503, "stopping"]
                       end
        answer(status, { status: word, rails_loaded: rails_loaded?, concurrency: gate.capacity, busy: gate.busy })
      end

      def rails_loaded?
        defined?(Rails) && Rails.respond_to?(:application) && Rails.application&.initialized? ? true : false
      end

      def posted(env)
        authentic(env) do |job, json|
          problem = problem_with(job)
          problem ? answer(400, { status: "error", result: problem }) : yield(job, json)
        end
      end

      # Reads JSON from the request, in the order that tells strangers least: whether it is a program's, size, identity,
      # content.
      def authentic(env)
        # Without a secret it is the address that counts, and a page in a browser of this machine has the right one. It
        # cannot leave out its origin; of a page that has no script, or an old browser, the type gives it away.
        return answer(403, { status: "error", result: "browsers are not served" }) if env["HTTP_ORIGIN"]
        unless JSON_TYPE.match?(env["CONTENT_TYPE"].to_s)
          return answer(415, { status: "error", result: "content-type: must be application/json" })
        end

        limit = @settings.max_body_bytes
        body = env["rack.input"]&.read(limit + 1).to_s
        return answer(413, { status: "error", result: "the body is larger than #{limit} bytes" }) if body.bytesize > limit

        refusal = @authentication.refusal(env, body)
        return unauthorized(refusal) if refusal

        yield @sidekiq.parse(body.force_encoding(Encoding::UTF_8)), body
      rescue JSON::ParserError
        # Its message would quote the body.
        answer(400, { status: "error", result: "the body is not JSON, or nested too deeply" })
      end

      def problem_with(job)
        return "a job is a JSON object" unless job.is_a?(Hash)

        # Without any, `perform` is called with none, as Sidekiq does.
        "args: must be an array" unless job["args"].nil? || job["args"].is_a?(Array)
      end

      def unauthorized(reason)
        @sidekiq.logger.warn("Refused a request: #{reason}")
        answer(401, { status: "error", result: "unauthorized" }, "www-authenticate" => "Bearer")
      end

      def execute(job, json, env)
        deadline = deadline(env)
        execution = Execution.new(job, json, sidekiq: @sidekiq, queue: printable(env["HTTP_X_JOB_QUEUE"]),
                                             last: last_attempt(env), context: context(env),
                                             stopping: gate.method(:stopping?))
        name = name_of(job)
        outcome = @runs.during(name, deadline) do |run|
          gate.run(deadline: deadline, name: name) { execution.call(run) }
        end
        outcome = hanging(execution, deadline) if outcome == :overdue
        answered(outcome)
      rescue @sidekiq.shutdown
        # It came between the job's end and its verdict.
        answered(Verdict.interrupted)
      end

      # By what a job is known here and to the worker, as a text; nil if it has no name.
      def name_of(job)
        name = job["jid"].to_s
        name unless name.empty?
      end

      # The worker stops, and these jobs may end (gently) or are given back: then they must not run on here while others
      # begin them. It answers at once, and is asked again while some have not ended: no thread of ours waits for a job
      # that does not heed it.
      def interrupt(order)
        jids = order.is_a?(Hash) ? order["jids"] : nil
        unless jids.is_a?(Array) && jids.all?(String)
          return answer(400, { status: "error", result: "jids: must be an array of texts" })
        end

        answer(200, { status: "success", running: order["gently"] == true ? gate.ask(jids) : gate.halt(jids) })
      end

      def die(job, json, env)
        @runs.give_up(name_of(job))
        answered(beyond(deadline(env)) { Execution.new(job, json, sidekiq: @sidekiq).die(JobDied.of(job)) })
      rescue @sidekiq.shutdown
        answered(Verdict.interrupted)
      end

      # An earlier run of the job hangs, most likely. As a failure it comes again later, or ends at its last attempt, as
      # after any timeout.
      def hanging(execution, deadline)
        @sidekiq.logger.warn("Failed a job: #{StillRunning::MESSAGE}")
        beyond(deadline) { execution.refuse(StillRunning.new(StillRunning::MESSAGE)) }
      end

      # Handlers of a job that is given up, which may hold a slot here for as long as it likes. Few at once: they may be
      # slow, and the threads that answer /health are not theirs.
      def beyond(deadline, &block)
        gate.run(beyond: true, deadline: deadline, &block)
      end

      def answered(outcome)
        case outcome
        when :full
          answer(503, { status: "unavailable", result: "all #{gate.capacity} slots are taken" },
                 "retry-after" => RETRY_SOON)
        when :running
          answer(503, { status: "unavailable", result: "an earlier run of this job has not ended here" },
                 "retry-after" => RETRY_SOON)
        when :halted
          answer(503, { status: "unavailable", result: "this job was told to stop a moment ago" },
                 "retry-after" => RETRY_SOON)
        # Without Retry-After: the job had better go elsewhere than wait for this process.
        when :closed then answer(503, { status: "unavailable", result: "stopping" })
        else
          watch_memory
          answer(200, outcome)
        end
      end

      # Ruby gives little memory back, and being killed for it costs the jobs that run: better to end in good order
      # and be started again. The jobs that run may end first.
      def watch_memory
        limit = @settings.memory_limit_bytes
        return if limit.nil? || !gate.open?

        resident = @memory.call
        return if resident.nil? || resident <= limit

        # Before the gate: whoever sees it closed must see why.
        @draining = true
        return unless gate.close

        @sidekiq.logger.warn("Stopping once its jobs have ended: #{resident >> 20} MiB of memory are more than " \
                             "JOBQUEUE_MEMORY_LIMIT_MB")
        Thread.new do
          gate.drain(@settings.memory_drain_timeout)
          @draining = false
          @stop.call
        end
      end

      # When the worker gives up waiting, by the gate's clock; nil when it does not say.
      def deadline(env)
        seconds = Float(env["HTTP_X_JOB_TIMEOUT"].to_s, exception: false)
        gate.now + seconds if seconds&.finite? && seconds.positive?
      end

      # Whether the worker will try again when this attempt fails; nil when it does not say.
      def last_attempt(env)
        { "true" => true, "false" => false }[env["HTTP_X_JOB_LAST_ATTEMPT"].to_s.downcase]
      end

      def context(env)
        trace = env["HTTP_TRACEPARENT"].to_s[/\A[0-9a-f]{2}-([0-9a-f]{32})-/, 1]
        { request_id: printable(env["HTTP_X_REQUEST_ID"]), trace_id: trace }.compact
      end

      def printable(value)
        value if PRINTABLE.match?(value.to_s)
      end

      def answer(status, body, headers = {})
        json = body.to_json
        [status, { "content-type" => "application/json", "content-length" => json.bytesize.to_s, **headers }, [json]]
      end
    end
  end
end

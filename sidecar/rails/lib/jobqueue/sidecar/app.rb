# frozen_string_literal: true

require "json"
require "rack"
require "jobqueue/sidecar/authentication"
require "jobqueue/sidecar/execution"
require "jobqueue/sidecar/gate"
require "jobqueue/sidecar/memory"
require "jobqueue/sidecar/sidekiq_runtime"
require "jobqueue/sidecar/verdict"

module Jobqueue
  module Sidecar
    # What the worker said the job died of.
    class JobDied < Error; end

    # The Rack application: POST /jobs/execute, POST /jobs/death, GET /health. README.md has the contract.
    class App
      # Seconds until a slot may be free: the least that the header can say.
      RETRY_WHEN_FULL = "1"
      # Header values go into log lines.
      PRINTABLE = /\A[\x21-\x7e]{1,128}\z/.freeze

      attr_reader :gate

      # `stop` ends this process gracefully; it is called when the memory limit is passed.
      def initialize(settings, sidekiq: SidekiqRuntime.new, memory: Memory.method(:resident),
                     stop: -> { Process.kill(:TERM, Process.pid) })
        @settings = settings
        @sidekiq = sidekiq
        @authentication = Authentication.new(settings)
        @gate = Gate.new(settings.concurrency, interrupt: sidekiq.shutdown)
        @memory = memory
        @stop = stop
      end

      def call(env)
        case env["PATH_INFO"]
        when "/health" then only("GET", env) { health }
        when "/jobs/execute" then only("POST", env) { posted(env) { |job, json| execute(job, json, env) } }
        when "/jobs/death" then only("POST", env) { posted(env) { |job, json| die(job, json) } }
        else answer(404, { status: "error", result: "there is nothing here" })
        end
      end

      private

      def only(method, env)
        allowed = method == "GET" ? %w[GET HEAD] : [method]
        return yield if allowed.include?(env["REQUEST_METHOD"])

        answer(405, { status: "error", result: "only #{method}" }, "allow" => allowed.join(", "))
      end

      def health
        open = gate.open?
        answer(open ? 200 : 503, { status: open ? "ok" : "stopping", rails_loaded: rails_loaded?,
                                   concurrency: gate.capacity, busy: gate.busy })
      end

      def rails_loaded?
        defined?(Rails) && Rails.respond_to?(:application) && Rails.application&.initialized? ? true : false
      end

      # Reads a job from the request, in the order that tells strangers least: size, identity, content.
      def posted(env)
        limit = @settings.max_body_bytes
        body = env["rack.input"]&.read(limit + 1).to_s
        return answer(413, { status: "error", result: "the body is larger than #{limit} bytes" }) if body.bytesize > limit

        refusal = @authentication.refusal(env, body)
        return unauthorized(refusal) if refusal

        job = @sidekiq.parse(body.force_encoding(Encoding::UTF_8))
        problem = problem_with(job)
        return answer(400, { status: "error", result: problem }) if problem

        yield job, body
      rescue JSON::ParserError
        # Its message would quote the body.
        answer(400, { status: "error", result: "the body is not JSON, or nested too deeply" })
      end

      def problem_with(job)
        return "a job is a JSON object" unless job.is_a?(Hash)
        return "class: must be a text" unless job["class"].is_a?(String) && !job["class"].empty?

        "args: must be an array" unless job["args"].is_a?(Array)
      end

      def unauthorized(reason)
        @sidekiq.logger.warn("Refused a request: #{reason}")
        answer(401, { status: "error", result: "unauthorized" }, "www-authenticate" => "Bearer")
      end

      def execute(job, json, env)
        in_a_slot do
          Execution.new(job, json, sidekiq: @sidekiq, last: last_attempt(env), context: context(env),
                                   stopping: -> { !gate.open? }).call
        end
      end

      def die(job, json)
        reason = JobDied.new([job["error_class"], job["error_message"]].compact.join(": "))
        in_a_slot do
          outcome = Execution.new(job, json, sidekiq: @sidekiq).die(reason)
          Verdict.new(status: "success", discard: outcome.words[:discard])
        end
      end

      def in_a_slot(&block)
        outcome = begin
          gate.run(&block)
        rescue @sidekiq.shutdown
          # It came between the job's end and its verdict.
          Verdict.interrupted
        end
        case outcome
        when :full
          answer(503, { status: "unavailable", result: "all #{gate.capacity} slots are taken" },
                 "retry-after" => RETRY_WHEN_FULL)
        # Without Retry-After: the job had better go elsewhere than wait for this process.
        when :closed then answer(503, { status: "unavailable", result: "stopping" })
        else
          watch_memory
          answer(200, outcome)
        end
      end

      # Ruby gives little memory back, and being killed for it costs the jobs that run: better to end in good order
      # and be started again.
      def watch_memory
        limit = @settings.memory_limit_bytes
        return if limit.nil? || !gate.open?

        resident = @memory.call
        return if resident.nil? || resident <= limit

        gate.close
        @sidekiq.logger.warn("Stopping: #{resident >> 20} MiB of memory are more than JOBQUEUE_MEMORY_LIMIT_MB")
        @stop.call
      end

      # Whether the worker will try again when this attempt fails; nil when it does not say.
      def last_attempt(env)
        { "true" => true, "false" => false }[env["HTTP_X_JOB_LAST_ATTEMPT"].to_s.downcase]
      end

      def context(env)
        id = env["HTTP_X_REQUEST_ID"].to_s
        trace = env["HTTP_TRACEPARENT"].to_s[/\A[0-9a-f]{2}-([0-9a-f]{32})-/, 1]
        { request_id: PRINTABLE.match?(id) ? id : nil, trace_id: trace }.compact
      end

      def answer(status, body, headers = {})
        json = body.to_json
        [status, { "content-type" => "application/json", "content-length" => json.bytesize.to_s, **headers }, [json]]
      end
    end
  end
end

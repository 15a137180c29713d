# Ruby on request: a line is a JSON string of code, the answer is a line of JSON. What people do in `rails console`.
require_relative "jobs"

# What runs, as the API tells it: whose process, queue, job and since when.
def work
  Sidekiq::Workers.new.map do |identity, _, one|
    one = { "queue" => one.queue, "payload" => one.payload, "run_at" => one.run_at.to_i } unless one.is_a?(Hash)
    payload = one["payload"]
    { "identity" => identity, "queue" => one["queue"], "run_at" => one["run_at"],
      "job" => payload.is_a?(String) ? JSON.parse(payload) : payload }
  end
end

TIMES = %w[created_at enqueued_at failed_at retried_at].freeze

# A failed job as people compare it: names in their order, all that does not depend on when and who.
def shape(json)
  job = JSON.parse(json)
  lines = Sidekiq::JobRecord.new(json).error_backtrace
  { "names" => job.keys, "values" => job.reject { |name, _| (TIMES + %w[jid error_backtrace]).include?(name) },
    "times" => TIMES.map { |time| job[time].class.name }, "lines" => lines.size, "line" => lines.first[/in [`'].*/] }
end

# What the page Busy says of what runs: the name of each job, and the last that it shows of its arguments.
def names_of_work
  work.map { |one| Sidekiq::JobRecord.new(one["job"]) }.map { |job| [job.display_class, job.display_args.flatten.last] }.sort
end

# How long a job waits for its retry, in seconds.
def wait_of(json, score)
  job = JSON.parse(json)
  failed = job["retried_at"] || job["failed_at"]
  score - (failed.is_a?(Integer) ? failed / 1000.0 : failed)
end

# Brings every retry forward, as if its time had come, and notes what it was if it is asked to.
def hurry(noting: true)
  $retries = {}
  $hurry ||= Thread.new do
    loop do
      Sidekiq.redis { |r| r.call("ZRANGE", "retry", 2, "+inf", "BYSCORE") }.each do |json|
        score = Sidekiq.redis { |r| r.call("ZSCORE", "retry", json) }
        next if score.nil?

        $retries[JSON.parse(json)["retry_count"]] = [shape(json), wait_of(json, score.to_f)] if noting
        Sidekiq.redis { |r| r.call("ZADD", "retry", "XX", 1, json) }
      end
      sleep 0.01
    end
  end
  nil
end

# Sidekiq's own web pages, asked without a server in between.
def web(verb, path, **more)
  require "rack"
  require "rack/mock"
  require "sidekiq/web"
  $session ||= {}
  answer = Rack::MockRequest.new(Sidekiq::Web).request(verb, path, "rack.session" => $session, **more)
  raise "#{path}: #{answer.status}" unless [200, 302].include?(answer.status)

  answer.body
end

# Whether a page shows all of these.
def shows(path, *words)
  page = web("GET", path)
  words - words.select { |word| page.include?(word) }
end

# A button of the page Busy. It proves where it comes from by a token of the page, from Sidekiq 8 on by what browsers say.
def press(button)
  token = web("GET", "/busy")[/name=.authenticity_token. value=.([^"']+)/, 1]
  web("POST", "/busy", "HTTP_SEC_FETCH_SITE" => "same-origin",
      params: { "identity" => Sidekiq::ProcessSet.new.first.identity, button => "1", "authenticity_token" => token })
  nil
end

$stdout.sync = true
while (line = $stdin.gets)
  answer = begin
    { "ok" => eval(JSON.parse(line), TOPLEVEL_BINDING) }
  rescue StandardError, ScriptError => error
    { "error" => "#{error.class}: #{error.message}" }
  end
  puts JSON.generate(answer)
end

# A small application behind our worker: what is posted to it is run through Sidekiq's server middleware. No web
# framework, so that it needs no package but Sidekiq's; what the sidecar for Rails answers, it answers too. With
# ANSWERS=gem it is that sidecar which answers, without Rails.
require_relative "jobs"
require "socket"
require "stringio"

if ENV["ANSWERS"] == "gem"
  require "sidekiq/cli"
  require "sidekiq/job_retry"
  require "sidekiq/job_logger"
  $LOAD_PATH.unshift(File.expand_path("../../../../sidecar/rails/lib", __dir__))
  require "jobqueue/sidecar"
  require "jobqueue/sidecar/app"
  GEM = Jobqueue::Sidecar::App.new(Jobqueue::Sidecar::Settings.new("JOBQUEUE_CONCURRENCY" => "8"))
end

# As Puma would ask it.
def ask_the_gem(verb, path, headers, body)
  env = { "REQUEST_METHOD" => verb, "PATH_INFO" => path, "QUERY_STRING" => "", "REMOTE_ADDR" => "127.0.0.1",
          "CONTENT_TYPE" => headers["content-type"], "rack.input" => StringIO.new(body) }
  headers.each { |name, value| env["HTTP_#{name.upcase.tr("-", "_")}"] = value }
  status, = answer = GEM.call(env)
  [status, answer.last.join]
end

def answer(verb, path, headers, body)
  return ask_the_gem(verb, path, headers, body) if defined?(GEM)

  said = case [verb, path]
  when ["GET", "/health"] then { "status" => "ok", "rails_loaded" => false }
  when ["POST", "/jobs/execute"] then execute(body)
  when ["POST", "/jobs/death"] then bury(body)
  end
  [said ? 200 : 404, JSON.generate(said || {})]
end

def failure(error, **more)
  { "status" => "failure", "error_class" => error.class.name, "error_message" => error.message,
    "backtrace" => error.backtrace || [], **more }
end

def execute(body)
  job = Sidekiq.load_json(body)
  begin
    type = Object.const_get(job["class"])
  rescue NameError => error
    return failure(error, "unknown_class" => true)
  end
  worker = type.new
  worker.jid = job["jid"]
  begin
    CONFIG.server_middleware.invoke(worker, job, job["queue"]) { worker.perform(*job["args"]) }
    { "status" => "success", "result" => nil }
  rescue StandardError => error
    failure(error)
  end
end

# What the sidecar for Rails gives to the death handlers.
def bury(body)
  job = Sidekiq.load_json(body)
  Sidekiq.redis { |redis| redis.lpush("died", JSON.generate(job.slice("class", "args", "error_class"))) }
  { "status" => "failure", "discard" => job["args"] == ["forget"] }
end

def serve(socket)
  while (request = socket.gets)
    headers = {}
    while (line = socket.gets) && line != "\r\n"
      name, value = line.split(":", 2)
      headers[name.downcase] = value.strip
    end
    body = socket.read(headers["content-length"].to_i) || ""
    verb, path, = request.split
    status, text = answer(verb, path, headers, body)
    socket.write("HTTP/1.1 #{status} Answered\r\nContent-Type: application/json\r\nContent-Length: #{text.bytesize}\r\n\r\n#{text}")
  end
rescue Errno::ECONNRESET, Errno::EPIPE
  # The worker went away.
ensure
  socket.close
end

server = TCPServer.new("127.0.0.1", Integer(ENV.fetch("PORT")))
warn "The application listens"
loop { Thread.new(server.accept) { |socket| serve(socket) } }

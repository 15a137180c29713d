# Contestant Sidekiq (6.4, Debian's package): see src/peers.rs for what the three commands have to do.
require "rubygems"
require "securerandom"
require "sidekiq"
require "sidekiq/launcher"
require "sidekiq/cli"

if ARGV[0] == "version"
  puts Sidekiq::VERSION
  exit
end

COMMAND, ADDRESS = ARGV
FIRST = Integer(ARGV[2])
THREADS = COMMAND == "work" ? FIRST : 10
# Standard output is for figures, and a line a job would be part of them.
Sidekiq.logger = Logger.new($stderr, level: Logger::ERROR)
Redis.silence_deprecations = true
Sidekiq.redis = { url: "redis://#{ADDRESS}/0", size: THREADS + 5 }

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_microsecond)
end

# With its envelope about 200 bytes, all distinct.
class Noop
  include Sidekiq::Worker
  def perform(_number, _padding); end
end

class Timed
  include Sidekiq::Worker
  STARTED = {}
  def perform(number)
    STARTED[number] = now
  end
end

def launch
  options = Sidekiq.options
  options[:concurrency] = THREADS
  options[:queues] = ["default"]
  options[:timeout] = 5
  options[:fetch] = Sidekiq::BasicFetch.new(options)
  launcher = Sidekiq::Launcher.new(options)
  launcher.run
  launcher
end

case COMMAND
when "enqueue"
  (0...FIRST).each_slice(1000) do |numbers|
    Sidekiq::Client.push_bulk("class" => Noop, "args" => numbers.map { |number| [number, SecureRandom.hex(20)] })
  end
when "work"
  stop = Queue.new
  trap("TERM") { Thread.new { stop << true } }
  launcher = launch
  stop.pop
  launcher.stop
when "pickup"
  rate, count = FIRST, Integer(ARGV[3])
  launcher = launch
  sleep 2
  pushed = []
  start = now
  count.times do |number|
    due = start + number * 1_000_000.0 / rate
    sleep((due - now) / 1_000_000.0) if due > now
    pushed << now
    Timed.perform_async(number)
  end
  sleep 0.05 until Timed::STARTED.size >= count
  count.times { |number| puts((Timed::STARTED[number] - pushed[number]).round) }
  launcher.stop
end

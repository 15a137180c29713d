# frozen_string_literal: true

require "redis"
require "socket"
require "tmpdir"

# A redis-server of its own on a free port.
class RedisServer
  extend Eventually

  attr_reader :url

  def self.free_port
    server = TCPServer.new("127.0.0.1", 0)
    server.addr[1]
  ensure
    server&.close
  end

  def self.start
    new.tap { |server| eventually("redis-server answers") { server.answers? } }
  end

  def initialize
    port = self.class.free_port
    @url = "redis://127.0.0.1:#{port}/0"
    @directory = Dir.mktmpdir("jobqueue-redis")
    @pid = Process.spawn("redis-server", "--port", port.to_s, "--bind", "127.0.0.1", "--save", "", "--dir", @directory,
                         out: File::NULL, err: File::NULL)
  end

  def client
    @client ||= Redis.new(url: url)
  end

  def answers?
    client.ping
  rescue Redis::BaseConnectionError
    false
  end

  def stop
    @client&.close
    Process.kill(:KILL, @pid)
    Process.wait(@pid)
    FileUtils.rm_rf(@directory)
  end
end

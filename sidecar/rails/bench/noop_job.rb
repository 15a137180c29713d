# frozen_string_literal: true

# Jobs for both sides of the benchmark: loaded with ruby -r, before anything else is.

# Does nothing.
class NoopJob
  attr_accessor :jid, :bid, :_context

  def perform(*); end
end

# Notes how long after it was enqueued it began, in milliseconds.
class PickupJob
  KEY = "bench:pickup"

  attr_accessor :jid, :bid, :_context

  def perform(sent)
    waited = (Time.now.to_f - sent) * 1000
    Sidekiq.redis { |redis| redis.rpush(KEY, waited.to_s) }
  end
end

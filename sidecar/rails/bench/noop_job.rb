# frozen_string_literal: true

# A job that does nothing, for both sides of the benchmark: loaded with ruby -r, before anything else is.
class NoopJob
  attr_accessor :jid, :bid, :_context

  def perform(*); end
end

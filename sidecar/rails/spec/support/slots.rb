# frozen_string_literal: true

# Takes slots of a gate.
module Slots
  # Runs a block in a slot of another thread; it is in its slot when this returns.
  def occupy(gate, **how)
    entered = Queue.new
    thread = Thread.new do
      gate.run(**how) do
        entered << true
        yield
      end
    rescue Sidekiq::Shutdown
      :interrupted
    end
    entered.pop
    thread
  end
end

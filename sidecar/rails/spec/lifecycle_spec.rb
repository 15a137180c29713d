# frozen_string_literal: true

require "jobqueue/sidecar/lifecycle"

RSpec.describe Jobqueue::Sidecar::Lifecycle do
  let(:sidekiq) { Jobqueue::Sidecar::SidekiqRuntime.new }
  let(:gate) { Jobqueue::Sidecar::Gate.new(1, interrupt: Sidekiq::Shutdown) }
  let(:lifecycle) { described_class.new(gate, sidekiq: sidekiq, stop_timeout: 0) }

  # A Sidekiq process has hooks of its own, which other specs may have loaded with it.
  before { sidekiq.options[:lifecycle_events].each_value(&:clear) }

  it "calls the application's hooks as a Sidekiq process does, and only once each" do
    %i[startup quiet shutdown].each do |event|
      SidekiqVersions.config.then { |config| config.on(event) { Events << [event, gate.open?] } }
    end
    SidekiqVersions.config.on(:quiet) { raise "a hook that fails harms nobody" }
    lifecycle.start
    2.times { lifecycle.stop }
    expect(Events.to_a).to eq([[:startup, true],
                               [:reported_error, "RuntimeError", "Exception during Sidekiq lifecycle event."],
                               [:quiet, false], [:shutdown, false]])
  ensure
    sidekiq.options[:lifecycle_events].each_value(&:clear)
  end

  it "calls those of :shutdown while jobs run, which may wait for them, and those of :exit when none does" do
    hooks = sidekiq.options[:lifecycle_events]
    known = hooks.key?(:exit)
    lifecycle = described_class.new(gate, sidekiq: sidekiq, stop_timeout: 10)
    go = Queue.new
    begun = Queue.new
    job = Thread.new { gate.run { [begun << true, go.pop] } }
    begun.pop
    hooks[:shutdown] << -> { [Events << [:shutdown, gate.busy], go << true] }
    (hooks[:exit] ||= []) << -> { Events << [:exit, gate.busy] }
    lifecycle.stop
    expect(Events.to_a).to eq([[:shutdown, 1], [:exit, 0]])
    expect(job.value.last).to be(true)
  ensure
    hooks.each_value(&:clear)
    hooks.delete(:exit) unless known
  end
end

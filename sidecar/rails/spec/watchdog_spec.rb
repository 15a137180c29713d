# frozen_string_literal: true

RSpec.describe Jobqueue::Sidecar::Watchdog do
  # As much of a gate as it looks at.
  let(:gate) { Struct.new(:now, :stuck) { alias_method(:stuck?, :stuck) }.new(0, false) }
  let(:stopped) { [] }
  let(:watchdog) do
    described_class.new(gate, sidekiq: Jobqueue::Sidecar::SidekiqRuntime.new, patience: 60, stop: -> { stopped << gate.now })
  end

  def looked(now, stuck)
    gate.now = now
    gate.stuck = stuck
    watchdog.look
    stopped.dup
  end

  it "ends a process that has been stuck for so long, and none that recovers in between" do
    looks = [[0, true], [59, true], [60, false], [61, true], [120, true], [121, true]]
    expect(looks.map { |now, stuck| looked(now, stuck) }).to eq([[], [], [], [], [], [121]])
    expect(@log.string).to include("every slot has been held by a job that nobody waits for")
  end

  it "does nothing where it is not wanted" do
    expect(described_class.new(gate, sidekiq: nil, patience: nil, stop: nil).start).to be_nil
  end
end

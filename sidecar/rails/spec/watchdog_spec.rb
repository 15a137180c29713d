# frozen_string_literal: true

RSpec.describe Jobqueue::Sidecar::Watchdog do
  let(:gate) { Jobqueue::Sidecar::Gate.new(1, interrupt: Sidekiq::Shutdown, clock: -> { @now }) }
  let(:stopped) { [] }
  let(:watchdog) do
    described_class.new(gate, sidekiq: Jobqueue::Sidecar::SidekiqRuntime.new, patience: 60, stop: -> { stopped << @now })
  end

  # When it has stopped the process, having looked at each of these times.
  def looked(*times)
    times.each do |now|
      @now = now
      watchdog.look
    end
    stopped
  end

  it "ends a process that has been stuck for so long, and none that recovers in between" do
    @now = 0
    go = Queue.new
    job = occupy(gate, deadline: 10) { go.pop }
    expect(looked(11, 70)).to be_empty
    go << :ended
    job.join
    expect(looked(71)).to be_empty
    hanging = occupy(gate, deadline: 80) { go.pop }
    expect(looked(81, 140)).to be_empty
    expect(looked(141)).to eq([141])
    expect(@log.string).to include("every slot has been held by a job that nobody waits for")
    hanging.kill
  end

  it "does nothing where it is not wanted" do
    expect(described_class.new(gate, sidekiq: nil, patience: nil, stop: nil).start).to be_nil
  end
end

# frozen_string_literal: true

RSpec.describe Jobqueue::Sidecar::Gate do
  subject(:gate) { described_class.new(2, interrupt: Sidekiq::Shutdown) }

  it "runs as many as it has slots and refuses the next without running it" do
    go = Queue.new
    threads = Array.new(2) { occupy(gate) { go.pop } }
    expect(gate.run { raise "must not run" }).to eq(:full)
    expect(gate.busy).to eq(2)
    2.times { go << :done }
    expect(threads.map(&:value)).to eq(%i[done done])
    expect(gate.run { :third }).to eq(:third)
  end

  it "frees the slot of a block that raised" do
    3.times { expect { gate.run { raise Boom } }.to raise_error(Boom) }
    expect(gate.busy).to eq(0)
  end

  it "lets what runs go on when it is closed, and starts nothing" do
    go = Queue.new
    thread = occupy(gate) { go.pop }
    gate.close
    expect(gate.run { raise "must not run" }).to eq(:closed)
    go << :finished
    expect(thread.value).to eq(:finished)
  end

  it "waits for running jobs when it stops and interrupts none that ends" do
    go = Queue.new
    thread = occupy(gate) { go.pop }
    stopper = Thread.new { gate.stop(60) }
    eventually("it is closed") { !gate.open? }
    go << :finished
    expect([thread.value, stopper.value]).to eq([:finished, 0])
  end

  it "interrupts what does not end in time, and nothing that comes after" do
    thread = occupy(gate) { Queue.new.pop }
    expect(gate.stop(0)).to eq(1)
    expect(thread.value).to eq(:interrupted)
    expect(gate.busy).to eq(0)
  end

  it "halts the jobs that are named, each once, no other, and starts none of them for a while" do
    time = 100.0
    gate = described_class.new(3, interrupt: Sidekiq::Shutdown, clock: -> { time })
    go = Queue.new
    tidied = []
    named = occupy(gate, name: "a") do
      Queue.new.pop
    ensure
      # A second interruption would end this too.
      tidied << go.pop
    end
    others = ["b", nil].map { |name| occupy(gate, name: name) { go.pop } }
    expect([gate.halt(%w[a c]), gate.halt(%w[a c])]).to eq([1, 1])
    3.times { go << :end }
    expect([named.value, *others.map(&:value)]).to eq(%i[interrupted end end])
    expect([tidied, gate.halt(%w[a])]).to eq([[:end], 0])
    # Also one that has not begun: its request may come after the order.
    expect(%w[a c b].map { |name| gate.run(name: name) { :ran } }).to eq(%i[halted halted ran])
    time += described_class::HALTED_FOR
    expect(%w[a c].map { |name| gate.run(name: name) { :ran } }).to eq(%i[ran ran])
  end

  it "asks the jobs that are named to stop at a good place, and interrupts none" do
    go = Queue.new
    threads = %w[a b].map { |name| occupy(gate, name: name) { go.pop && gate.stopping? } }
    expect([gate.ask(%w[a c]), gate.stopping?]).to eq([1, false])
    2.times { go << true }
    expect(threads.map(&:value)).to eq([true, false])
    expect(gate.run(name: "a") { :ran }).to eq(:ran)
  end

  it "is stuck when every slot is past its deadline, and not before" do
    time = 100.0
    gate = described_class.new(2, interrupt: Sidekiq::Shutdown, clock: -> { time })
    go = Queue.new
    threads = [110.0, 120.0].map { |deadline| occupy(gate, deadline: deadline) { go.pop } }
    expect([gate.stuck?, (time = 115.0) && gate.stuck?, (time = 121.0) && gate.stuck?]).to eq([false, false, true])
    2.times { go << true }
    threads.each(&:join)
    expect(gate.stuck?).to be(false)
    patient = occupy(gate) { go.pop }
    expect((time = 1e9) && gate.stuck?).to be(false)
    go << true
    patient.join
  end

  it "has little room beside its slots, and that only for what is short" do
    go = Queue.new
    threads = Array.new(2) { occupy(gate) { go.pop } } << occupy(gate, beyond: true) { go.pop }
    expect([gate.run { raise "must not run" }, gate.run(beyond: true) { raise "must not run" }]).to eq(%i[full full])
    3.times { go << :done }
    expect(threads.map(&:value)).to eq(%i[done] * 3)
  end

  it "drains until nothing runs that anybody waits for" do
    time = 100.0
    gate = described_class.new(2, interrupt: Sidekiq::Shutdown, clock: -> { time })
    go = Queue.new
    awaited = occupy(gate, deadline: 200.0) { go.pop }
    hanging = occupy(gate, deadline: 150.0) { Queue.new.pop }
    drained = Thread.new { gate.drain(nil) || :drained }
    expect(drained.join(0.2)).to be_nil
    go << true
    awaited.join
    expect(drained.join(0.2)).to be_nil
    time = 151.0
    expect(drained.value).to eq(:drained)
    time = 100.0
    expect(Thread.new { gate.drain(0) || :drained }.value).to eq(:drained)
    hanging.kill
  end

  it "leaves its thread fit for the next request, whether the job or the interruption came first" do
    300.times do
      gate = described_class.new(1, interrupt: Sidekiq::Shutdown)
      entered = Queue.new
      thread = Thread.new do
        begin
          gate.run { entered << true }
        rescue Sidekiq::Shutdown
          nil
        end
        10.times { Thread.pass }
        :fit
      end
      entered.pop
      gate.stop(0)
      expect(thread.value).to eq(:fit)
    end
  end

  it "keeps the result of a job that had ended when the interruption came" do
    ended = Queue.new
    go = Queue.new
    # Held where it is in its slot still, and its block has returned.
    gate.define_singleton_method(:leave) do
      ended << true
      go.pop
      super()
    end
    thread = Thread.new { gate.run { :result } }
    ended.pop
    expect(gate.stop(0)).to eq(1)
    go << true
    expect(thread.value).to eq(:result)
  end
end

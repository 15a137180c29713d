# frozen_string_literal: true

RSpec.describe Jobqueue::Sidecar::RetryRule do
  def after(job, count: 0, now: 1000.0, **rest)
    described_class.after_failure(job, count: count, max_retries: 25, failed_at: 1000.0, now: now, **rest)
  end

  it "retries as often as the job says, and 25 times when it only says yes" do
    expect(after({ "retry" => true }, count: 24)).to eq(:again)
    expect(after({ "retry" => true }, count: 25)).to eq(:exhausted)
    expect(after({ "retry" => 2 }, count: 1)).to eq(:again)
    expect(after({ "retry" => 2 }, count: 2)).to eq(:exhausted)
    expect(after({ "retry" => 0 })).to eq(:exhausted)
    expect(after({ "retry" => false })).to eq(:never)
  end

  it "stops when the time of retry_for is over, whatever the count" do
    expect(after({ "retry" => true, "retry_for" => 60 }, now: 1060.0)).to eq(:again)
    expect(after({ "retry" => true, "retry_for" => 60 }, now: 1060.1)).to eq(:exhausted)
  end

  it "counts besides retry_for before Sidekiq 8.1 and not from then on" do
    job = { "retry" => 1, "retry_for" => 60 }
    expect(after(job, count: 1)).to eq(:exhausted)
    expect(after(job, count: 1, retry_for_alone: true)).to eq(:again)
  end
end

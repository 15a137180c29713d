# frozen_string_literal: true

RSpec.describe Jobqueue::Sidecar::Verdict do
  def parsed(verdict)
    JSON.parse(verdict.to_json)
  end

  it "names its decision before anything that may be long" do
    verdict = described_class.failed(Boom.new("x" * 9_000), backtrace: ["line"], kill: true)
    expect(parsed(verdict).keys).to eq(%w[status kill error_class error_message result backtrace])
  end

  it "keeps ten thousand characters of a message, as Sidekiq does" do
    %w[ß 😀].each do |char|
      expect(parsed(described_class.failed(Boom.new(char * 12_000)))["error_message"]).to eq(char * 10_000)
    end
  end

  it "fits what the worker reads, whatever the message and the backtrace are" do
    ["\u0000" * 20_000, "😀" * 20_000, "x"].each do |message|
      verdict = described_class.failed(Boom.new(message), backtrace: ["/app/models/ä.rb:1:in `x'"] * 5_000)
      expect(verdict.to_json.bytesize).to be <= 60_100
      expect(parsed(verdict)["backtrace"].size).to be > 100
    end
  end

  it "survives messages that are not text" do
    unspeakable = Class.new(StandardError) { define_method(:message) { raise "no" } }
    expect(parsed(described_class.failed(unspeakable.new))["error_message"]).to match(/THREW AN ERROR/)
    expect(parsed(described_class.failed(Boom.new("\xFF\xFE".b)))["error_message"]).to eq("\uFFFD\uFFFD")
  end
end

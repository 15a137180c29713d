# frozen_string_literal: true

require "tempfile"

RSpec.describe Jobqueue::Sidecar::Settings do
  def settings(**env)
    described_class.new(env.transform_keys(&:to_s))
  end

  it "listens on loopback and takes as many jobs as Rails has threads when nothing is set" do
    expect(settings).to have_attributes(bind: "tcp://127.0.0.1:3000", concurrency: 5, stop_timeout: 25,
                                        memory_limit_bytes: nil)
    expect(settings(RAILS_MAX_THREADS: "7", PORT: "9").then { |s| [s.concurrency, s.bind] })
      .to eq([7, "tcp://127.0.0.1:9"])
  end

  it "has threads to spare, so that health and refusals are answered when every slot is taken" do
    expect(settings(JOBQUEUE_CONCURRENCY: "10").threads).to eq(13)
  end

  it "names every wrong value and its rule at once" do
    expect { settings(JOBQUEUE_CONCURRENCY: "many", JOBQUEUE_CLOCK_SKEW: "0") }
      .to raise_error(Jobqueue::Sidecar::Error, <<~TEXT.chomp)
        JOBQUEUE_CONCURRENCY: "many": must be an integer from 1 to 1000
        JOBQUEUE_CLOCK_SKEW: "0": must be an integer from 1 to 86400
      TEXT
  end

  it "writes its log as text, or as JSON where that is asked for" do
    expect([settings.log_format, settings(JOBQUEUE_LOG_FORMAT: "json").log_format]).to eq(%w[text json])
    expect { settings(JOBQUEUE_LOG_FORMAT: "xml") }
      .to raise_error(Jobqueue::Sidecar::Error, 'JOBQUEUE_LOG_FORMAT: "xml": must be text or json')
  end

  it "does not start where others can connect and there is no secret, unless that is meant" do
    %w[tcp://0.0.0.0:3000 tcp://[::]:3000 tcp://10.0.0.7:3000 ssl://0.0.0.0:3000?cert=a tcp://127.0.0.1.evil.example:1].each do |bind|
      expect { settings(JOBQUEUE_BIND: bind) }.to raise_error(Jobqueue::Sidecar::Error, /JOBQUEUE_BIND.*JOBQUEUE_TOKEN_FILE/)
      expect(settings(JOBQUEUE_BIND: bind, JOBQUEUE_WITHOUT_SECRET: "loopback")).to have_attributes(bind: bind, local?: false)
    end
    %w[tcp://127.0.0.1:3000 tcp://[::1]:3000 tcp://localhost:3000 unix:///run/jobs.sock].each do |bind|
      expect(settings(JOBQUEUE_BIND: bind)).to have_attributes(bind: bind, local?: true)
    end
    expect { settings(JOBQUEUE_WITHOUT_SECRET: "yes") }.to raise_error(Jobqueue::Sidecar::Error, /must be loopback/)
  end

  it "does not start with a secret that is empty or cannot be read" do
    Tempfile.create("token") do |file|
      file.write(" \n")
      file.flush
      expect { settings(JOBQUEUE_TOKEN_FILE: file.path, JOBQUEUE_HMAC_KEY_FILE: "/nowhere") }
        .to raise_error(Jobqueue::Sidecar::Error) { |error|
              expect(error.message).to include("JOBQUEUE_TOKEN_FILE", "is empty",
                                               'JOBQUEUE_HMAC_KEY_FILE: "/nowhere": No such file or directory')
            }
    end
  end
end

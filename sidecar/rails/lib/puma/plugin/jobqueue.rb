# frozen_string_literal: true

require "puma/plugin"

# Ties the sidecar's start and stop to Puma's: Puma alone would wait, and then kill threads in the middle of a job.
Puma::Plugin.create do
  def start(launcher)
    events = launcher.events
    # Puma 7 has another word for it.
    booted = events.respond_to?(:after_booted) ? :after_booted : :on_booted
    events.public_send(booted) { follow }
  end

  private

  # Once the application is loaded, and Puma has installed its own signal handlers, which are called in turn.
  def follow
    require "jobqueue/sidecar/lifecycle"
    app = Jobqueue::Sidecar.app
    lifecycle = Jobqueue::Sidecar::Lifecycle.new(app.gate, sidekiq: Jobqueue::Sidecar::SidekiqRuntime.new,
                                                           stop_timeout: Jobqueue::Sidecar.settings.stop_timeout)
    lifecycle.start
    app.watchdog.start
    %w[TERM INT].each { |signal| before(signal) { lifecycle.stop } }
    # Puma waits for the jobs, and nobody but us for the application's shutdown hooks: five seconds, no more.
    at_exit { @stopping&.join(5) }
  end

  def before(signal, &block)
    puma = nil
    puma = Signal.trap(signal) do
      # A signal handler may take no lock; a thread may.
      @stopping ||= Thread.new(&block)
      puma.call
    end
  end
end

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
    %w[TERM INT].each do |signal|
      before(signal) do
        lifecycle.stop
        # A thread that nobody waits for: it matters only when Puma does not end.
        Thread.new { without_puma(signal) }
      end
    end
    # Puma waits for the jobs, and nobody but us for the application's shutdown hooks: five seconds, no more.
    at_exit { @stopping&.join(5) }
  end

  # Puma 6 on Ruby 3.3 may hang when it closes its listener. Nothing listens then, and nobody would start us again.
  def without_puma(signal)
    sleep(Jobqueue::Sidecar::Lifecycle::PUMA_ENDS_WITHIN)
    Sidekiq.logger.warn("Ended without Puma, which did not")
    Signal.trap(signal, "SYSTEM_DEFAULT")
    Process.kill(signal, Process.pid)
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

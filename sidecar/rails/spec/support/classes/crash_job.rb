# frozen_string_literal: true

# Kills its process, each time. Loaded into the application with ruby -r.
class CrashJob
  attr_accessor :jid, :bid, :_context

  def perform
    Process.kill(:KILL, Process.pid)
  end
end

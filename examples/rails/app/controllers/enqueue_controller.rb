# frozen_string_literal: true

# Enqueues one of the three jobs, as any part of an application would.
class EnqueueController < ActionController::API
  JOBS = {
    "thumbnail" => -> { ThumbnailJob.perform_async("cat.png", 0, { "width" => 120 }) },
    "charge" => -> { ChargeJob.perform_async("alice") },
    "report" => -> { ReportJob.perform_later("sales", at: Time.current).provider_job_id }
  }.freeze

  def create
    job = JOBS[params[:job]]
    return render json: { error: "job: must be one of #{JOBS.keys.join(", ")}" }, status: :not_found if job.nil?

    render json: { jid: job.call }, status: :created
  end
end

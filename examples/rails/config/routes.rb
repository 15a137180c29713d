# frozen_string_literal: true

Rails.application.routes.draw do
  post "/enqueue/:job", to: "enqueue#create"
  # Protect it in an application of yours.
  mount Sidekiq::Web => "/sidekiq"
end
